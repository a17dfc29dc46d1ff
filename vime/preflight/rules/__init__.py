"""The rules a configuration must keep, by subject; `vime/preflight/validation.py` lists them."""
