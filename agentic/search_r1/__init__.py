"""Search-R1: the model interleaves its reasoning with queries to a search engine, and answers a question."""
