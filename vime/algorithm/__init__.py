"""Advantages, losses, KL estimators and aggregation as pure functions."""
