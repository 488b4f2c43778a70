"""Judgement: trajectory -> the return still to come."""
