"""The laptop task of the multi-agent method: a maze whose right door is known only after a solver has walked through it."""
