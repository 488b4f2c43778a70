"""The comparison: methods x tasks x seeds, its statistics, tables and pictures."""
