"""All that is loaded into vLLM's processes: its API server as we start it, and what its workers do with weights."""
