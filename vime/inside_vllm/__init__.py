"""All that is loaded into vLLM's processes: its API server as we start it, and the workers' handling of weights."""
