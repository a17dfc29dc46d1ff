"""The laptop task: generated databases, a tokenizer, demonstrations, and the weights of a tiny model."""
