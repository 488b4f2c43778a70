"""Train goal critics (PNLC)."""
