"""The trainer: Megatron-core from one CPU core to a cluster, Hugging Face checkpoints in and out."""
