"""A model's prompts and samples, message by message: trees of turns, chat templates, and trainable sequences."""
