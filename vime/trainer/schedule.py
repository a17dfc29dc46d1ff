"""The learning rate as a function of the step, so that a resumed run needs nothing but its step."""

import math

from vime.config import Schedule, TrainerConfig


def learning_rate(config: TrainerConfig, step: int) -> float:
    """Rate of 0-based batch `step`: linear warm-up over `warmup_steps`, then the schedule down to `min_lr` at `num_steps`."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if config.lr_schedule is Schedule.constant:
        return config.lr
    progress = (step - config.warmup_steps) / max(config.num_steps - config.warmup_steps, 1)
    progress = min(max(progress, 0.0), 1.0)
    decay = 1 - progress if config.lr_schedule is Schedule.linear else (1 + math.cos(math.pi * progress)) / 2
    return config.min_lr + (config.lr - config.min_lr) * decay
