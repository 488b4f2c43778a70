"""What a call to a graph of this library gives: its context, config and critic, and the config of its particles."""

from __future__ import annotations

import asyncio
import difflib
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple, NotRequired

from langchain_core.callbacks import (
    AsyncCallbackHandler,
    AsyncCallbackManager,
    BaseCallbackHandler,
    BaseCallbackManager,
)
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import DEFAULT_RECURSION_LIMIT
from langgraph.runtime import get_runtime
from pydantic import BaseModel
from typing_extensions import TypedDict

from amc_agents.config import Config
from amc_agents.critics.adapting import CriticLike, name_of
from amc_agents.critics.allowed import AllowedCritics
from amc_agents.critics.spec import parse_critic
from amc_agents.errors import ConfigurationError, CriticSpecError
from amc_agents.quoting import listed, masked, quoted
from amc_agents.runtime.contract import Agent
from amc_agents.runtime.metering import ContextHandler
from amc_agents.types import Critic

NEW_WORLD = "amc_new_world"
"""Key of `configurable`: True: the turn of a conversation starts from a new world."""
PARTICLE_THREAD = "amc_particle_thread"
"""Key of a particle's `configurable` with the particle's own thread; "thread_id" is the caller's, if there is one."""
SEED = "amc_seed"
"""Key of `configurable` with the seed of a call."""


class AmcContext(TypedDict):
    """The run-time context of a graph whose agent has no context schema."""

    critic: NotRequired[str]
    """The critic's string for this call."""


def check_context(schema: Any, context: Any) -> None:
    """Check that every key of a call's context is read.

    Args:
        schema: the graph's context schema: the agent's own, or `AmcContext`.
        context: the context of the call.

    Raises:
        ConfigurationError: an unknown key, if the agent has no schema; or a critic, if the agent's schema has no
            field for it.
    """
    if schema is AmcContext:
        if context is not None and not isinstance(context, Mapping):
            raise ConfigurationError(
                f"context= is of type {type(context).__name__}, and the agent has no context schema: give it one "
                '(context_schema=...), or a dictionary with a "critic"'
            )
        unknown = next((key for key in context or () if key != "critic"), None)
        if unknown is not None:
            meant = ", did you mean 'critic'?" if _means_critic(unknown) else ""
            raise ConfigurationError(
                f"context= has no key {quoted(unknown)}{meant}: the agent has no context schema, so a call can only "
                'name its "critic". Give the agent a schema (context_schema=...) for further keys'
            )
    elif isinstance(context, Mapping) and "critic" in context and not _has_place(schema, "critic"):
        raise ConfigurationError(
            f"the agent's context schema {schema.__name__} has no field `critic`: name the critic of a call by "
            'config={"configurable": {"critic": ...}}'
        )


def _means_critic(key: Any) -> bool:
    return key != "critic" and bool(difflib.get_close_matches(str(key).lower(), ["critic"], cutoff=0.8))


def _has_place(schema: Any, name: str) -> bool:
    """True if a context may have this key: a mapping may have any key, a class its fields."""
    if is_dataclass(schema):
        return name in {field.name for field in fields(schema)}
    return not (isinstance(schema, type) and issubclass(schema, BaseModel)) or name in schema.model_fields


class Call(NamedTuple):
    """The context, critic and notes of a call."""

    context: Any
    """The agent's own run-time context."""
    critic: Any
    """The critic of this call, a string or an object; None: not named."""
    critic_from: str
    """Place of the critic: "context" or "configurable"."""
    seed: int | None = None
    """Seed of this call; None: not given."""
    notes: tuple[str, ...] = ()
    """Notes for the run."""


def read_call(agent: Agent, context: Any, config: RunnableConfig) -> Call:
    """Take the critic out of a call's context, or else read it from `configurable`."""
    named, source = None, "context"
    if isinstance(context, Mapping) and "critic" in context:
        named = context["critic"]
        context = {key: value for key, value in context.items() if key != "critic"}
    if isinstance(context, Mapping) and not context and agent.builder.context_schema is None:
        context = None
    if named is None:
        named, source = config.get("configurable", {}).get("critic"), "configurable"
    # Any library may add keys to `configurable`, so unknown keys are not refused.
    misspelt = [key for key in _own_keys(config) if named is None and _means_critic(key)]
    notes = tuple(
        f"configurable has {quoted(key)}, which amc does not read: did you mean 'critic'?" for key in misspelt
    )
    return Call(context, named, source, _seed_of(config), notes)


def _seed_of(config: RunnableConfig) -> int | None:
    seed = config.get("configurable", {}).get(SEED)
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
        raise ConfigurationError(f"configurable {SEED} must be a whole number of at least 0, got {quoted(seed)}")
    return seed


def particle_config(config: RunnableConfig) -> RunnableConfig:
    """Return the config of particles: tracing, tags and the user's `configurable` of the outer run.

    It omits the keys that tie a run to its checkpoint, the handlers that stream (tokens and events of all N
    particles would reach the user's stream), and the handlers that each request gets from its context.
    """
    manager = AsyncCallbackManager.configure(inheritable_callbacks=config.get("callbacks"))
    for handler in [*manager.handlers]:
        if _streams(handler) or isinstance(handler, ContextHandler):
            manager.remove_handler(handler)
    inherited = {key: value for key, value in _own_keys(config).items() if key not in ("critic", SEED, NEW_WORLD)}
    inner: RunnableConfig = {"callbacks": manager, "configurable": inherited}
    # Without a user's limit a node sees LangChain's default; leaving it out applies LangGraph's, which is far higher.
    if config.get("recursion_limit", DEFAULT_RECURSION_LIMIT) != DEFAULT_RECURSION_LIMIT:
        inner["recursion_limit"] = config["recursion_limit"]
    if config.get("tags"):
        inner["tags"] = [tag for tag in config["tags"] if not tag.startswith(("graph:", "seq:"))]
    if config.get("metadata"):
        inner["metadata"] = {
            key: value for key, value in config["metadata"].items() if not key.startswith(("langgraph_", "checkpoint"))
        }
    return inner


def stream_listeners(config: RunnableConfig) -> list[BaseCallbackHandler]:
    """Return the handlers that stream a call's messages, tokens or events to its caller."""
    callbacks = config.get("callbacks")
    return [*filter(_streams, callbacks.handlers)] if isinstance(callbacks, BaseCallbackManager) else []


def takes_chunks(listener: BaseCallbackHandler) -> bool:
    """Return whether a listener shows tokens as message chunks; that of `version="v3"` expects protocol events."""
    ignored = [getattr(kind, "on_stream_event", None) for kind in (BaseCallbackHandler, AsyncCallbackHandler)]
    return getattr(type(listener), "on_stream_event", None) in ignored


def _streams(handler: BaseCallbackHandler) -> bool:
    return hasattr(handler, "tap_output_aiter")


def _own_keys(config: RunnableConfig) -> dict[str, Any]:
    """Return the user's keys of `configurable`, without those that LangGraph adds."""
    return {
        key: value for key, value in config.get("configurable", {}).items() if not key.startswith(("__", "checkpoint"))
    }


OfferedCritics = Mapping[str, str | CriticLike] | AllowedCritics
"""Critics that calls may name: name -> critic, or an allow-list."""
VARIABLE = "AMC_CRITIC"
"""Environment variable with the critic's string."""
MOST_KEPT = 16
"""Maximum number of critics named by calls that a graph caches."""


@dataclass(frozen=True)
class ChosenCritic:
    """A critic and its source."""

    critic: Critic
    name: str
    """Its string, the class of an object, or the name of a function."""
    source: str
    """The place that named it."""


class CriticChoice:
    """The critic of a graph, and the critics that its calls name.

    Args:
        critic: what the constructor was given, or None.
        config: the configuration file.
        fit: adapts a critic to the method, or raises `ConfigurationError`.
        offered: name -> critic, the choice of a call, or an allow-list; None: a call may name any critic that is
            allowed in calls. `critic` may be such a name too.

    Raises:
        ConfigurationError: a critic's string is invalid, or the critic does not fit.
    """

    def __init__(
        self,
        critic: str | CriticLike | None,
        config: Config,
        fit: Callable[[Critic], Critic],
        offered: OfferedCritics | None = None,
    ) -> None:
        self._fit = fit
        self._allowed = offered if isinstance(offered, AllowedCritics) else None
        names = offered.offered if isinstance(offered, AllowedCritics) else offered
        self._offered = None if names is None else {name: fit(parse_critic(offer)) for name, offer in names.items()}
        self._kept: dict[str, Critic] = {}
        self._loading = threading.Lock()
        named, source = self._named(critic, config)
        if isinstance(named, str) and self._offered is not None and named in self._offered:
            self.own = ChosenCritic(self._offered[named], named, source)
        else:
            # Constructor, environment and file are trusted: they may also name code.
            self.own = ChosenCritic(fit(parse_critic(named)), _name(named), source)

    async def for_call(self, critic: str | CriticLike | None, source: str) -> ChosenCritic:
        """Return the critic that a call names, or the graph's own; a call's string may not name code or files.

        Args:
            critic: the critic of the call, or None.
            source: the place that named it.

        Raises:
            ConfigurationError: the critic is not offered to calls, its string is invalid, or it does not fit.
        """
        if critic is None:
            return self.own
        if self._offered is not None and isinstance(critic, str) and critic in self._offered:
            return ChosenCritic(self._offered[critic], critic, source)
        self._refuse_unless_allowed(critic)
        if not isinstance(critic, str):
            return ChosenCritic(self._fit(parse_critic(critic)), _name(critic), source)
        kept = self._kept.get(critic)
        if kept is None:
            # Loading a critic would block the event loop.
            kept = await asyncio.to_thread(self._load, critic)
        return ChosenCritic(kept, _name(critic), source)

    def _refuse_unless_allowed(self, critic: str | CriticLike) -> None:
        """Refuse a critic that is not among the offered names, unless there is no offer or an allow-list decides."""
        if self._offered is None:
            if isinstance(critic, str) and _is_served():
                raise CriticSpecError(
                    f"the critic {quoted(critic)} was named by a call to a server, and this graph offers none: "
                    'build it with critics={"name": critic}, and let calls name one of these'
                )
        elif self._allowed is None or not isinstance(critic, str):
            came = quoted(critic) if isinstance(critic, str) else f"an object ({type(critic).__name__})"
            names = listed(self._offered) if self._allowed is None else self._allowed.described()
            raise CriticSpecError(f"a call chooses its critic among {names}, got {came}")

    @staticmethod
    def _named(critic: str | CriticLike | None, config: Config) -> tuple[str | CriticLike, str]:
        if critic is not None:
            return critic, "constructor"
        if os.environ.get(VARIABLE):
            return os.environ[VARIABLE], VARIABLE
        if config.critic is not None:
            return config.critic, config.name
        return "uniform", "default"

    def _load(self, spec: str) -> Critic:
        with self._loading:  # Concurrent calls wait for the first call to load the critic.
            if spec not in self._kept:
                critic = self._fit(self._parse(spec))
                if len(self._kept) == MOST_KEPT:
                    del self._kept[next(iter(self._kept))]
                self._kept[spec] = critic
            return self._kept[spec]

    def _parse(self, spec: str) -> Critic:
        return parse_critic(spec, trusted=False) if self._allowed is None else self._allowed.parse(spec)


def _name(critic: str | CriticLike) -> str:
    """Return the name for runs, records and traces."""
    return masked(critic) if isinstance(critic, str) else name_of(critic)


def _is_served() -> bool:
    """True if this call runs on LangGraph's server."""
    try:
        runtime = get_runtime()
    except (RuntimeError, KeyError):  # No graph is running.
        return False
    return runtime is not None and runtime.server_info is not None
