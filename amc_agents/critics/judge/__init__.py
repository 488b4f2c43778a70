"""Judge critics: a chat model that is asked for a number."""
