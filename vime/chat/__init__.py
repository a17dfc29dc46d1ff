"""A model as an agent talks to it: calls, conversations, and the content of replies."""
