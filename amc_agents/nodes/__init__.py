"""LangGraph nodes and graphs."""
