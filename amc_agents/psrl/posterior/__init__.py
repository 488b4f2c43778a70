"""The posterior: a versioned text that belongs to its owner."""
