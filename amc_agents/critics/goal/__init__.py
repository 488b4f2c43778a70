"""Goal critics: the probability of reaching a goal, computed by a small network from embeddings."""
