"""Memory of trainer, servers and driver in bytes, computed from the configuration alone."""
