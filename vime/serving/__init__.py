"""Serving: vLLM servers and their router, supervision of both, and the clients that call them."""
