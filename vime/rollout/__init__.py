"""Agents at work: model calls, isolated rollouts, their workers, and the producer of batches."""
