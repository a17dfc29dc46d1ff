"""An index of the rollouts of a run, by which one is found among a million."""
