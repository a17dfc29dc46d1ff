"""The checks of `tools/gpu_check.py`: the trainer's results, memory and speed, beside the expected ones."""
