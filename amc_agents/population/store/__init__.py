"""A particle's view of the agent's store."""
