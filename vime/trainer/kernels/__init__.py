"""Our own kernels for the trainer on a CPU: rows (norms, SwiGLU, logprobs), blocks in bfloat16 (attention, weight gradients)."""
