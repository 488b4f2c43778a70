"""What the graphs share."""
