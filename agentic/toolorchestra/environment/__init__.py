"""Conversations between a customer, an agent with tools and a database: the built-in one, and the contract for others."""
