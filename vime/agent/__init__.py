"""Sandboxes for programs that agents write, workspaces that agents work in, and agents that are external programs."""
