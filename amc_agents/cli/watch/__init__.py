"""`--watch`: show the populations of runs in progress, in place on a terminal and as plain lines elsewhere."""
