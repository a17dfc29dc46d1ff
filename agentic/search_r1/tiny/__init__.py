"""The laptop task of Search-R1: a generated encyclopaedia, two-hop questions about it, and how its tiny model was made."""
