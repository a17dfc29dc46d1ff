"""Rows, prompts, the buffer of finished groups, and packing."""
