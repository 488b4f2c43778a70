"""What a run may do beside Algorithm 1, each in one place."""
