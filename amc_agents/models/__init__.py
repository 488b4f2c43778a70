"""Policies as LangChain chat models: the embedded numpy model and any transformers causal language model.

This package imports nothing, so that `import amc_agents.models` is cheap.
"""
