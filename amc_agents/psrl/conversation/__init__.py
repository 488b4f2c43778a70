"""PSRL and IDS over a conversation: the episode, its steps as evidence, and what a method does at each turn."""
