"""Offline: trajectories are collected, and critics are trained on them."""
