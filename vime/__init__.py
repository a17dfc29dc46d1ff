"""vime trains language-model agents by reinforcement learning on Megatron-core, vLLM, vllm-router and Ray."""
