"""What a run does beside Algorithm 1: each feature in a file or folder of its own, imported only by runs that use it.

| file | what it does |
|---|---|
| `limits` | `budget`, `run_timeout` and `stop_at` |
| `adaptive_size` | `n_particles=Adaptive(...)` |
| `race` | `race=Race(...)`: the first particles that finish decide |
| `committing` | commit tools and questions to a human: one particle acts in reality |
| `durable` | points from which a population goes on after a crash |
| `conversation_world` | the world with which the next turn of a conversation begins |
| `store_views`, `store_search` | each particle's view of the agent's store |
| `proposals` | settings of the agent that differ between particles |
| `settled` | `emit="settled"`: the answer's messages while the search runs |
| `agent_events` | what agents do, for `astream_events` and the custom stream |
| `traces` | spans, runs in LangChain's traces, and logs |
| `watchers` | the live view of `amc run --watch`, and who listens to runs |
| `search_notes` | notes on runs whose search could not help |
| `usage_by_fate` | what the policy's calls were paid for |

This file chooses the features of a run.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple

from langchain_core.callbacks import AsyncCallbackManager
from langchain_core.runnables import RunnableConfig
from langgraph.store.base import BaseStore

from amc_agents.logs import room_logger
from amc_agents.population.feature import Feature, Features
from amc_agents.population.particle import Particle, State
from amc_agents.population.settings import Settings, WrappedAgent
from amc_agents.runtime import calls
from amc_agents.runtime.metering import PolicyMeter
from amc_agents.runtime.tracing import NO_SPAN, RunSpan
from amc_agents.usage import Usage


class RunStart(NamedTuple):
    """What a run begins with, as far as its features depend on it."""

    wrapped: WrappedAgent
    settings: Settings
    config: RunnableConfig
    """Of the first node."""
    given: State
    """The values of the agent's channels."""
    meter: PolicyMeter
    """Counts the requests of all particles."""
    writer: Callable[[Any], None] | None
    """The custom stream, if it has a reader."""
    store: BaseStore | None
    """The agent's store."""
    span: RunSpan
    run_id: str
    recruit: Callable[[int, int], Awaitable[list[Particle]]]
    """Creates new particles: (their number, number of earlier particles)."""
    spent_s: float = 0.0
    """Seconds that the run has already taken."""
    restored: tuple[str, Mapping[str, Mapping[str, Usage]]] | None = None
    """(identifier, usage by model) of a run that goes on."""


def features_of(start: RunStart) -> Features:
    """Return the features of a run, in the order in which the loop asks and tells them."""
    own = [make() for make in start.settings.features]
    return Features([*_features(start), *own], {"commits": _commits})


def _features(start: RunStart) -> Iterator[Feature]:
    from amc_agents.population.features.search_notes import SearchNotes
    from amc_agents.population.features.usage_by_fate import UsageByFate

    wrapped, settings = start.wrapped, start.settings
    yield UsageByFate(start.meter)
    configurable = start.config.get("configurable", {})
    has_thread = wrapped.environment is not None and configurable.get("__pregel_checkpointer") is not None
    if has_thread or calls.NEW_WORLD in configurable:
        from amc_agents.population.features.conversation_world import ConversationWorld

        yield ConversationWorld(start.config)
    shows = [*_shows(start)]
    if shows or _is_traced(start):
        from amc_agents.population.features.traces import Traces

        yield from shows
        yield Traces(start.span, start.run_id)
    if settings.budget is not None or settings.run_timeout is not None:
        from amc_agents.population.features.limits import Limits

        yield Limits(settings, wrapped.agent, wrapped.prices, start.spent_s, start.restored)
    if settings.adaptive is not None:
        from amc_agents.population.features.adaptive_size import AdaptiveSize

        yield AdaptiveSize(start.recruit)
    if settings.race is not None:
        from amc_agents.population.features.race import Racing

        yield Racing(settings.race, start.recruit)
    if settings.stop_at is not None:
        from amc_agents.population.features.limits import StopAt

        yield StopAt(settings.stop_at)
    if wrapped.effects.commit_nodes or any(
        effect not in ("read", "world") for effect in wrapped.effects.tools.values()
    ):
        yield _commits()
    if start.store is not None:
        from amc_agents.population.features.store_views import StoreViews

        yield StoreViews(start.store)
    if settings.proposals:
        from amc_agents.population.features.proposals import Proposals

        yield Proposals(settings.proposals)
    yield SearchNotes()
    watchers = sys.modules.get("amc_agents.population.features.watchers")
    if watchers is not None and watchers.is_watched():  # Before this import, nobody can have asked.
        yield watchers.Watched()


def _shows(start: RunStart) -> Iterator[Feature]:
    """Yield the features that show what agents do to the readers of the call's streams."""
    settings, messages, is_answer = start.settings, start.given.get("messages"), _never
    if settings.emit == "settled" and isinstance(messages, list):
        from amc_agents.population.features.settled import SettledStream

        yield (settled := SettledStream(messages))
        is_answer = settled.wants_tokens_of
    if not calls.stream_listeners(start.config) and start.writer is None:
        return
    from amc_agents.population.features.agent_events import AgentEvents, CustomEvents, event_readers

    if readers := event_readers(start.config):
        yield AgentEvents(readers, everyone=settings.emit == "all", is_answer=is_answer)
    if start.writer is not None:
        yield CustomEvents(start.writer)


def _never(particle: Particle) -> bool:
    return False


def _is_traced(start: RunStart) -> bool:
    callbacks = calls.particle_config(start.config).get("callbacks")
    handlers = isinstance(callbacks, AsyncCallbackManager) and callbacks.handlers
    return start.span is not NO_SPAN or bool(handlers) or room_logger(__name__).isEnabledFor(logging.DEBUG)


def _commits() -> Feature:
    from amc_agents.population.features.committing import Commits

    return Commits()
