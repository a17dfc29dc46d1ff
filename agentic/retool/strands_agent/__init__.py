"""A mathematics agent of Strands with a Python tool; agent and tool run in a workspace."""
