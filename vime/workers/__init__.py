"""Processes that run agents: rollouts in isolation, groups of them, and the driver's view of all workers."""
