"""The output of a run: its folder, metrics, console, summary and report."""
