"""The retrieval service: a corpus, its index and search over HTTP, for all agents of a run."""
