"""Agents that others wrote as command-line programs, each made ready to run against a session."""
