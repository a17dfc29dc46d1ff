"""The laptop task of ToolOrchestra: generated questions, a shop, demonstrations, and how its three tiny models were made."""
