"""Serving: vLLM servers and their router, kept alive, and the trainer's weights brought to them."""
