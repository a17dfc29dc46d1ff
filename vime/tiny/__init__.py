"""How the methods' tiny models are made: tokenizer, chat template and the start of their weights."""
