"""Games of two players that a model learns by playing itself: Nim and tic-tac-toe."""
