"""Comparisons of methods x tasks x seeds: engine, statistics, tables and pictures."""
