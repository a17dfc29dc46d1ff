"""The start of both games: a tokenizer, random matches, and the weights of a model that has seen nothing else."""
