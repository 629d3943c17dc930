"""How good and how fast searches are."""
