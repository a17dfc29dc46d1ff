"""Builds the methods' tiny models: tokenizer, chat template and initial weights."""
