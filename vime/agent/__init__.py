"""The surroundings that agents work in: sandboxes for the programs that they write."""
