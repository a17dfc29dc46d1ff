"""Evaluation: who is asked under which protocol, and the items of every run as they finish."""
