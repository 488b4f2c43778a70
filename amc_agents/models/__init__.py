"""Policies: the embedded numpy model, and any transformers causal LM, as LangChain chat models.

Nothing is imported here, so that `import amc_agents.models` costs nothing.
"""
