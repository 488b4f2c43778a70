"""Decision: each paper's way to decide, in the paper's own order, over small protocols and free of any framework."""
