"""Files: folders that are whole or not there, JSON lines that survive a crash, and where a run came from."""
