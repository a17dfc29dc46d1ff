"""Classification: a pretrained language model completes a prompt with the name of a class."""
