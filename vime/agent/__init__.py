"""What agents are given to work with: sandboxes for the programs they write."""
