"""Rewards from a service over HTTP that others run."""
