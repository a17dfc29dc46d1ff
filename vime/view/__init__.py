"""A local page over run folders: curves, rollouts turn by turn, and runs beside each other (`python -m vime.view`)."""
