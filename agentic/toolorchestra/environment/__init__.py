"""Conversations of a customer with an agent that has tools and a database: the built-in shop, and the protocol for others."""
