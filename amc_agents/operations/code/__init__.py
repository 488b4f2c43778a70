"""Any coding agent that is a command: copies of a repository, and commands that run in them.

The command `amc code`, which races agents in such copies, is being built on these parts (issue 45).
"""
