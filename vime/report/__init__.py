"""Records of a run and views of them: its folder, metrics, console, summary and report."""
