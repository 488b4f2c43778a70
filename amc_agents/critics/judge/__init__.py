"""Judge critics: a chat model that scores trajectories by a number."""
