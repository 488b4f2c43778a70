"""LangGraph and LangChain code that all methods share."""
