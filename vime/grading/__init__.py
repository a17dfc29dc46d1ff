"""Graders: from a reply and its reference answers to a score, by rules and, where they cannot decide, by a judge."""
