"""AgentFlow's tools, one module each, and the `ToolBox` that runs them."""
