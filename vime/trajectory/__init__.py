"""Messages that a model was shown and that it sampled: trees of turns, chat templates, and trainable sequences."""
