"""Which groups run when, and which of them make a batch."""
