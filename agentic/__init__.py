"""Agent methods that vime trains, one folder each."""
