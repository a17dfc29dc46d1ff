"""A model as an agent talks to it: calls, conversations, and what replies say."""
