"""The laptop task of MemAgent: generated documents, demonstrations, and how its tiny model was made."""
