"""What a checkpoint says of its model, read without PyTorch or transformers."""
