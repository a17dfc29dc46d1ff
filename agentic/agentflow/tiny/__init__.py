"""The laptop task of AgentFlow: generated problems, a price list, demonstrations, and how its two tiny models were made."""
