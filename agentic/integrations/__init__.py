"""Pieces for agents of other libraries. They run in the agent's own environment and need nothing else of vime."""
