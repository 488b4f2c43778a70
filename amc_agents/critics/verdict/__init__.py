"""Verdict critics: log-odds of GOOD against BAD from a model's logits."""
