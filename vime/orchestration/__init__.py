"""The groups of rollouts: the time at which each runs, and those that make a batch."""
