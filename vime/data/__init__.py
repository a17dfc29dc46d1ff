"""Data sets: rows of a file as prompts, and the endless stream of them that a run trains on."""
