"""Training of value models."""
