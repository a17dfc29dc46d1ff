"""Runs that start at once: one process runs several, one after another, and each takes over what the last has left."""
