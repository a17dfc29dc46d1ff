"""ReTool's laptop task: arithmetic that a tiny model can do only by programs."""
