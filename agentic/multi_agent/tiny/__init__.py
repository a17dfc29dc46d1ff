"""The laptop task of the multi-agent method: a maze whose right door only shows itself once somebody has walked through it."""
