"""Evaluation: the rows of its table, the settings that scores depend on, and the items of every run."""
