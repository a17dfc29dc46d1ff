"""Word problems: a pretrained language model reads a problem, lets a calculator compute, and answers."""
