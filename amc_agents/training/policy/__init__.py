"""Distilled search: train a policy on the trajectories that a search found."""
