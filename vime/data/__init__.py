"""Rows of data sets, and the prompts made from them."""
