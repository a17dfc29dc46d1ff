"""The checks of `tools/gpu_check.py`: what the trainer computes, keeps in memory and achieves, beside what it should."""
