"""The viewer of runs: a local page and a terminal view, over an index of rollouts by which one is found among a million."""
