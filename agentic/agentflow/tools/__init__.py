"""Tools of AgentFlow: one module each, and the box that runs them."""
