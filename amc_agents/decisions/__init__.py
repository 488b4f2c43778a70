"""What the decisions of LAC, PNLC and PSRL share, free of any framework."""
