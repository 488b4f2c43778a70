"""The engine's own solutions of its tasks."""

from __future__ import annotations

from functools import lru_cache

from amc_agents_scienceworld.engine import engine


@lru_cache(maxsize=4096)
def gold_path(name: str, variation: int, simplifications: str = "") -> tuple[str, ...]:
    """Return the engine's solution, which is not always the shortest. Its computation takes 0.1 to 5 s.

    Raises:
        ConfigurationError: there is no such task, variation or simplification.
    """
    simulation = engine().load(name, variation, simplifications, gold=True)
    try:
        return tuple(map(str, simulation.ask("getGoldActionSequence")))
    finally:
        simulation.close()
