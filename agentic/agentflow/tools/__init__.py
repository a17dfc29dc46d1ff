"""AgentFlow's tools, one module each, and the `PlannerTools` that runs them."""
