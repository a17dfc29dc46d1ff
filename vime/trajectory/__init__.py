"""What a model was shown and what it sampled, message by message: trees of turns, chat templates, and trainable sequences."""
