"""The posterior: a versioned text that its owner can edit."""
