"""The description of a model in its checkpoint, read without PyTorch or transformers."""
