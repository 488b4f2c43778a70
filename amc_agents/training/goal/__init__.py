"""Training of goal critics."""
