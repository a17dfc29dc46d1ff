"""The rules a configuration must keep, by subject; `vime/validation.py` lists them."""
