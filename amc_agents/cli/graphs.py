"""Import the graph that an argument of a command names."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted


def load_graph(name: str) -> Any:
    """Import a compiled graph, from the working directory too.

    Args:
        name: `module:graph`.

    Raises:
        ConfigurationError: it cannot be imported, or is no graph.
    """
    module, colon, attribute = name.partition(":")
    sys.path.insert(0, "")
    try:
        loaded = getattr(import_module(module), attribute) if colon else None
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{quoted(name)} cannot be imported: {error}") from error
    if not hasattr(loaded, "invoke"):
        raise ConfigurationError(f"expected module:graph, the name of a compiled graph, got {quoted(name)}")
    return loaded
