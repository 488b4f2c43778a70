"""Comparisons of agents that explore over many episodes."""
