"""Goal critics: the probability of reaching a goal, from embeddings and a small network."""
