"""Our own kernels for the trainer on a CPU: rows (norms, SwiGLU, logprobs) and products in bfloat16 with AMX."""
