"""Code that the decisions of LAC, PNLC and PSRL share, independent of any framework."""
