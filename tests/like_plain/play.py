"""Play a scenario in one way of calling a graph, and record everything that its caller can observe."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from langchain_core.callbacks import BaseCallbackHandler, UsageMetadataCallbackHandler
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore

from amc_agents.population.wrap import amc
from amc_agents.smc import AtSteps
from tests.arguments import arguments
from tests.like_plain.canonical import canonical, merged, unnamed


class Case(NamedTuple):
    """A combination: a scenario, and how its graph is called."""

    scenario: str
    call: str
    modes: str
    version: str
    saver: str
    place: str
    durability: str
    particles: int

    @property
    def asynchronous(self) -> bool:
        return is_async(self.call)

    def __str__(self) -> str:
        return "-".join(str(part) for part in self if part != "-")


def is_async(call: str) -> bool:
    return call.startswith(("a", "events"))


@dataclass(frozen=True)
class Edit:
    """A turn that edits the state between two calls, as `update_state` does."""

    values: Mapping[str, Any]
    as_node: str | None = None


@dataclass
class Parts:
    """What a scenario's agent is made with, and where it notes its side effects."""

    ledger: Counter[str] = field(default_factory=Counter)
    """What the agent did; names that start with "once:" may happen once only, however many particles run."""
    store: InMemoryStore = field(default_factory=InMemoryStore)
    saver: Any = None
    """The checkpointer of the agent; None if it is a node of a graph, which has it."""


@dataclass(frozen=True)
class Scenario:
    """A scripted agent and the turns of its conversation."""

    make: Callable[[Parts], Any]
    """Returns the compiled agent."""
    turns: Sequence[Any] = ()
    """Inputs, `Command`s and `Edit`s."""
    wrapped: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of `amc`."""
    config: Mapping[str, Any] = field(default_factory=dict)
    context: Any = None
    bound: Mapping[str, Any] = field(default_factory=dict)
    """What `with_config` binds to the agent."""
    needs_saver: bool = False
    """Whether the turns need a checkpointer."""
    only: Callable[[str], bool] = lambda call: True
    """The calls in which the plain agent works at all."""


@dataclass
class Played:
    """What the caller of a graph has seen, aspect by aspect."""

    results: list[Any] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)
    history: list[Any] = field(default_factory=list)
    ledger: Counter[str] = field(default_factory=Counter)
    callbacks: Counter[Any] = field(default_factory=Counter)
    usage: Any = None
    stored: Any = None


class _Callbacks(BaseCallbackHandler):
    """Counts the starts of models and tools, with the tags and the user's metadata."""

    def __init__(self) -> None:
        self.seen: Counter[Any] = Counter()

    def on_chat_model_start(self, serialized, messages, *, tags=None, metadata=None, **kwargs):
        self._count("model", tags, metadata)

    def on_tool_start(self, serialized, input_str, *, tags=None, metadata=None, **kwargs):
        self._count(f"tool {kwargs.get('name') or serialized.get('name')}", tags, metadata)

    def _count(self, name, tags, metadata):
        shown = tuple(sorted(tag for tag in tags or () if not tag.startswith(("seq:", "graph:"))))
        self.seen[name, shown, (metadata or {}).get("team"), (metadata or {}).get("langgraph_node")] += 1


def play(scenario: Scenario, case: Case, *, wrapped: bool) -> Played:
    """Play a scenario with the plain agent, or with `amc`."""
    played = _played(scenario, case, case.particles if wrapped else None)
    return asyncio.run(played) if case.asynchronous else _without_loop(played)


def _without_loop(work: Coroutine[Any, Any, Played]) -> Played:
    """Run a coroutine that never waits, as the calls of a sync program run: without an event loop."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a sync call waited")


async def _played(scenario: Scenario, case: Case, n_particles: int | None) -> Played:
    played, parts = Played(), Parts()
    usage, callbacks = UsageMetadataCallbackHandler(), _Callbacks()
    async with AsyncExitStack() as stack:
        saver = await _saver(case, stack)
        nested = case.place == "node"
        parts.saver = None if nested else saver
        try:
            agent = scenario.make(parts)
            if n_particles is not None:
                agent = amc(
                    agent,
                    _prefers_the_first,
                    **arguments(
                        n_particles=n_particles,
                        quorum=n_particles,
                        resample=AtSteps(1, 2),
                        stateless_tools="tools" not in scenario.wrapped,
                        **scenario.wrapped,
                    ),
                )
        except Exception as error:
            played.results.append(_raised(error))
            return played
        graph = _placed(agent, scenario, case, saver, parts.store)
        shared = {**scenario.config, "callbacks": [usage, callbacks]}
        if case.place == "bound":
            graph = graph.with_config(tags=["bound"], metadata={"team": "t"})
        if scenario.bound:
            graph = graph.with_config(**scenario.bound)
        threads = [uuid.uuid4().hex for _ in range(2 if "batch" in case.call else 1)]
        configs = [_with_thread(shared, thread, saver) for thread in threads]
        for turn in scenario.turns:
            try:
                played.results.append(await _turn(graph, turn, scenario, case, configs))
            except Exception as error:
                played.results.append(_raised(error))
            if saver is not None:
                played.states.append(await _state(graph, case, configs[0], nested))
        if saver is not None:
            played.history = await _history(graph, case, configs[0])
    played.ledger, played.callbacks, played.usage = parts.ledger, callbacks.seen, usage.usage_metadata
    played.stored = sorted((item.namespace, item.key, repr(item.value)) for item in parts.store.search(()))
    return played


def _prefers_the_first(trajectories: Sequence[Any]) -> Any:
    """A critic by which all particles are forks of the first, twice."""
    return 100.0 * (np.arange(len(trajectories)) == 0)


async def _listed(items: Any) -> list[Any]:
    return [item async for item in items]


def _with_thread(config: Mapping[str, Any], thread: str, saver: Any) -> dict[str, Any]:
    configurable = {"thread_id": thread} if saver is not None else {}
    return {**config, "configurable": {**configurable, **config.get("configurable", {})}}


async def _saver(case: Case, stack: AsyncExitStack) -> Any:
    if case.saver == "memory":
        return InMemorySaver()
    if case.saver == "sqlite" and case.asynchronous:
        return await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(":memory:"))
    if case.saver == "sqlite":
        return stack.enter_context(SqliteSaver.from_conn_string(":memory:"))
    return None


def _placed(agent: Any, scenario: Scenario, case: Case, saver: Any, store: Any) -> Any:
    if case.place != "node":
        return agent
    schemas = agent.builder
    outer = StateGraph(
        schemas.state_schema,
        context_schema=None if scenario.context is None else type(scenario.context),
        input_schema=schemas.input_schema,
        output_schema=schemas.output_schema,
    )
    outer.add_node("agent", agent)
    outer.add_edge(START, "agent")
    return outer.compile(checkpointer=saver, store=store)


async def _turn(graph: Any, turn: Any, scenario: Scenario, case: Case, configs: list[dict[str, Any]]) -> Any:
    turn = turn() if callable(turn) else turn
    if isinstance(turn, Edit):
        for config in configs:
            update = graph.aupdate_state if case.asynchronous else graph.update_state
            edited = update(config, dict(turn.values), turn.as_node)
            _ = await edited if case.asynchronous else edited
        return "edited"
    options: dict[str, Any] = {} if scenario.context is None else {"context": scenario.context}
    if case.durability != "-":
        options["durability"] = case.durability
    if case.version == "v2":
        options["version"] = "v2"
    match case.call:
        case "invoke":
            return canonical(graph.invoke(turn, configs[0], **options))
        case "ainvoke":
            return canonical(await graph.ainvoke(turn, configs[0], **options))
        case "batch":
            return canonical(graph.batch([turn] * len(configs), configs, **options))
        case "abatch":
            return canonical(await graph.abatch([turn] * len(configs), configs, **options))
        case "stream":
            modes, subgraphs = _modes(case)
            return _shown([*graph.stream(turn, configs[0], stream_mode=modes, subgraphs=subgraphs, **options)], case)
        case "astream":
            modes, subgraphs = _modes(case)
            parts = graph.astream(turn, configs[0], stream_mode=modes, subgraphs=subgraphs, **options)
            return _shown(await _listed(parts), case)
        case "events_v1" | "events_v2":
            events = graph.astream_events(turn, configs[0], version=case.call[-2:], **options)
            return _events(await _listed(events), case)
    raise AssertionError(case)


def _modes(case: Case) -> tuple[str | list[str], bool]:
    subgraphs = case.modes.endswith("/subgraphs")
    modes = case.modes.removesuffix("/subgraphs")
    return modes.split("+") if "+" in modes else modes, subgraphs


def _shown(parts: list[Any], case: Case) -> Any:
    """Return what a stream shows of the agent's work, whichever graph shows it.

    The streams "updates", "tasks", "debug" and "checkpoints" are those of the nodes that run, so that only their end
    can be compared: that of a wrapped agent shows the nodes of the search.
    """
    shown: dict[str, list[Any]] = {}
    for mode, namespace, data in _by_mode(parts, case):
        if mode in ("values", "messages", "custom") and (not namespace or mode != "values"):
            shown.setdefault(mode, []).append(data)
    asked = [data for mode, _, data in _by_mode(parts, case) if mode == "updates" and "__interrupt__" in data]
    if asked:
        shown["interrupts"] = [item for data in asked for item in data["__interrupt__"]][:1]
    if "values" in shown:  # A search has no state between its start and its end.
        shown["values"] = [shown["values"][0], shown["values"][-1]]
    if "messages" in shown:
        shown["messages"] = merged([message for message, _ in shown["messages"]])
    if "custom" in shown:
        shown["custom"] = _custom(shown["custom"])
    return {mode: canonical(data) for mode, data in shown.items() if data}


def _by_mode(parts: list[Any], case: Case) -> Iterator[tuple[str, Any, Any]]:
    modes, subgraphs = _modes(case)
    for part in parts:
        if case.version == "v2":
            assert {"type", "ns", "data"} <= set(part), part
            yield part["type"], part["ns"], part["data"]
            continue
        *namespaces, data = part if subgraphs or isinstance(modes, list) else (part,)
        mode = namespaces.pop() if isinstance(modes, list) else modes
        yield mode, namespaces[0] if namespaces else (), data


def _custom(events: list[Any]) -> list[Any]:
    """Return the agent's own custom events: those of one particle, if all particles wrote the same."""
    if not any(isinstance(event, dict) and str(event.get("type")).startswith("amc.") for event in events):
        return events
    by_particle: dict[int, list[Any]] = {}
    for event in events:
        if event["type"] == "amc.event":
            by_particle.setdefault(event["particle"], []).append(event["event"])
    different = [written for n, written in by_particle.items() if written not in [*by_particle.values()][:n]]
    return different[0] if len(different) == 1 else different


def _events(events: list[dict[str, Any]], case: Case) -> Any:
    """Return what a front end shows of a run's events: ends of models and tools, and the root's output.

    Tools that one message calls end in any order. In v1, the root's output is the update of the node that ran last. The
    names of messages are left out: agents set them when the event is on its way, so that a reader may see it or not.
    """
    ends = [
        (event["event"], event["name"], unnamed(canonical(event["data"].get("output"))))
        for event in events
        if event["event"] in ("on_chat_model_end", "on_tool_end")
    ]
    shown = [end for _, neighbours in groupby(ends, key=itemgetter(0)) for end in sorted(neighbours, key=repr)]
    if case.call == "events_v1":
        return shown
    ended = [event for event in events if event["event"] == "on_chain_end" and not event["parent_ids"]]
    return shown, [canonical(event["data"].get("output")) for event in ended[-1:]]


async def _state(graph: Any, case: Case, config: dict[str, Any], nested: bool) -> Any:
    config = {"configurable": config["configurable"]}
    try:
        snapshot = await graph.aget_state(config) if case.asynchronous else graph.get_state(config)
    except Exception as error:  # LangGraph refuses to show a state that its schema does not allow.
        return _raised(error)
    asked = [interrupt for task in snapshot.tasks for interrupt in task.interrupts]
    return {
        "values": canonical(snapshot.values),
        "next": snapshot.next if nested else bool(snapshot.next),
        "interrupts": canonical(asked),
        "of the snapshot": canonical(snapshot.interrupts),
        "tasks": len(snapshot.tasks),
    }


async def _history(graph: Any, case: Case, config: dict[str, Any]) -> list[Any]:
    config = {"configurable": config["configurable"]}
    try:
        if case.asynchronous:
            return [canonical(snapshot.values) async for snapshot in graph.aget_state_history(config)]
        return [canonical(snapshot.values) for snapshot in graph.get_state_history(config)]
    except Exception as error:
        return [_raised(error)]


def _raised(error: BaseException) -> Any:
    """Return an error by its type and message; a quorum lost for a single cause by that cause."""
    causes = getattr(error, "causes", ())
    names = {(type(cause).__name__, str(cause).split(" without hitting a stop")[0]) for cause in causes or [error]}
    return "raised", *(names.pop() if len(names) == 1 else (type(error).__name__, canonical(str(error))))
