"""Weights in transit: the payload, both ends of every transport, and the proof that they were loaded."""
