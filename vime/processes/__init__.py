"""Programs that a run launches beside its driver: they are watched, launched again after a fault, and end with the run."""
