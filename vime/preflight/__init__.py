"""Everything before a run starts: the configuration is composed, checked, planned, or spread over a sweep."""
