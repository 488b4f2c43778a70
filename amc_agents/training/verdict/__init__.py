"""Train verdict models (LAC)."""
