"""Weight syncs: sending each version of the trained weights to all servers, and verifying it there."""
