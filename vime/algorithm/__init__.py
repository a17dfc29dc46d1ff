"""Advantages, losses, KL estimators and aggregation: pure functions."""
