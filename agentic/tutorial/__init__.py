"""Eight steps from one call of a model to an algorithm of your own, each a file to read and to run."""
