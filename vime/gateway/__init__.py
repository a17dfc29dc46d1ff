"""A URL for every rollout: agents that speak HTTP to a model are trained with exact tokens, in any of the protocols."""
