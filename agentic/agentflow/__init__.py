"""AgentFlow: a planner trained in the flow of its own multi-turn system (arXiv 2510.05592)."""
