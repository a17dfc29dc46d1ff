"""Composes, checks and plans the configuration of a run before it starts, or expands it to the runs of a sweep."""
