"""MemAgent: reads a long document section by section through a memory that the model rewrites."""
