"""`vime new NAME`: the folder from which a user begins an agent. See README.md."""
