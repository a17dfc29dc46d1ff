"""Weight syncs: each version of the trained weights brought to all servers, and proved there."""
