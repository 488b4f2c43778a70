"""What every method needs of LangGraph and LangChain."""
