"""Files: folders that are complete or absent, JSON lines that survive a crash, and where a run came from."""
