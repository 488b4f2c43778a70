"""Read the context and config of a call to an `amc` graph, and derive the config of its particles."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, NotRequired

from langchain_core.callbacks import (
    AsyncCallbackHandler,
    AsyncCallbackManager,
    BaseCallbackHandler,
    BaseCallbackManager,
)
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import DEFAULT_RECURSION_LIMIT
from pydantic import BaseModel
from typing_extensions import TypedDict

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.runtime.contract import Agent
from amc_agents.runtime.metering import ContextHandler

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
