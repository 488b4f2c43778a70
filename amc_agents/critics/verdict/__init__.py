"""Verdict critics: log-odds of GOOD against BAD, read from a model's logits."""
