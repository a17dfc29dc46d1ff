"""Environments: questions with a scorer, games and worlds in which one or several agents act; `play` is their only loop."""
