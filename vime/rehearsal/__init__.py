"""Rehearsals: any experiment on this machine, with its real code and configuration and a random small model."""
