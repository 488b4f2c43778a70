"""Training of verdict models."""
