"""The interface that an agent is written against: its context, its tools, and the time limits on its code."""
