"""AgentFlow (arXiv 2510.05592): a trained planner beside a frozen executor, verifier and generator, with tools."""
