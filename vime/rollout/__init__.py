"""Generation: model calls, isolated rollouts, workers, the producer and evaluation."""
