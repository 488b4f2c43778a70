"""Effects of tools and nodes: declare them with `effect`, and find them inside an agent's nodes.

Every particle really runs its tools, so `amc` must know whether repeating a tool does harm.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from langchain_core.language_models import BaseLanguageModel
from langchain_core.output_parsers import BaseOutputParser
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel
from langgraph.store.base import BaseStore

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted

T = TypeVar("T")


class _NoResult:
    def __repr__(self) -> str:
        return "no result"


_NO_RESULT = _NoResult()


@dataclass(frozen=True)
class Deferred:
    """Effect of a commit tool whose calls are only recorded: `Run.commit` makes those of the winner after the search.

    tools={"send_email": Deferred("The mail is queued.")}
    """

    result: Any = _NO_RESULT
    """What the agent receives instead of the tool's result: a value, or a function of the arguments by name. Without
    it, the call ends the particle."""

    @property
    def has_result(self) -> bool:
        """Whether the agent goes on after such a call."""
        return self.result is not _NO_RESULT

    def result_of(self, args: Mapping[str, Any]) -> Any:
        """Return what the agent receives for a call."""
        return self.result(**args) if callable(self.result) else self.result


@dataclass(frozen=True)
class Retried:
    """Effect of a commit tool that may run again after it raised, if its agent, a middleware or LangGraph retries it.

    For a tool whose failed call did nothing, or whose server recognises a repeated call:

    tools={"send_email": Retried(3)}
    """

    attempts: int
    """How often it runs at most; a "commit" runs once. Further retries get the last error."""

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 1:
            raise ConfigurationError(f"Retried(attempts) needs a number of at least 1, got {quoted(self.attempts)}")


EffectName = Literal["read", "world", "commit"]
Effect = EffectName | Deferred | Retried
"""Effect of running a tool: "read" may be repeated without harm, "world" acts on the particle's own world, "commit"
must happen once, in reality, while the particles wait; a `Retried` commit may fail before; a `Deferred` commit happens
after the search."""

_MARK = "__amc_effect__"
_HARMLESS = (BaseLanguageModel, BasePromptTemplate, BaseOutputParser)
_FRAMEWORKS = ("langchain", "langgraph")
_FUNCTIONS = ("func", "afunc", "_transform", "_atransform")
"""Attributes in which runnables made from functions store these."""
_OF_THE_STATE = ("langchain.agents.middleware.todo", "langgraph_swarm.handoff", "langgraph_supervisor.handoff")
"""Modules whose tools only return an update of the agent's state, or a hand-off."""
_NOT_SEARCHED = (Runnable, ModuleType, type)


def effect(kind: Effect) -> Callable[[T], T]:
    """Declare the effect of a tool or a node, for agents that run under `amc`.

    Works on functions, async functions, `@tool` objects (above or below `@tool`), classes of tools and node functions,
    and returns its argument:

        @tool
        @effect("read")
        def search(query: str) -> str: ...

    Args:
        kind: "read" if it may be repeated without harm; "world" if it acts on the particle's own world, which
            `amc(..., environment=...)` makes; "commit" if it must happen once, in reality; `Retried(...)` if it may
            run again after a failure; `Deferred(...)` if it must happen once, after the search.

    Raises:
        ConfigurationError: the kind is unknown, or the object cannot carry a declaration.
    """
    check_effect(kind)

    def declare(thing: T) -> T:
        if isinstance(thing, BaseTool):
            thing.metadata = {**(thing.metadata or {}), _MARK: kind}
            return thing
        try:
            setattr(thing, _MARK, kind)
        except (AttributeError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"@effect cannot mark a {type(thing).__name__}: declare it by name, amc(..., "
                f"tools={{name: {quoted(kind)}}})"
            ) from error
        return thing

    return declare


def check_effect(kind: Any) -> None:
    """Check that a value is an effect.

    Raises:
        ConfigurationError: it is not.
    """
    if not _is_effect(kind):
        raise ConfigurationError(
            f'an effect is "read", "world", "commit", Retried(...) or Deferred(...), got {quoted(kind)}'
        )


def _is_effect(kind: Any) -> bool:
    return isinstance(kind, Deferred | Retried) or (isinstance(kind, str) and kind in get_args(EffectName))


def attempts_of(effect: Effect | None) -> int:
    """Return how often a commit call may run while the particles wait; 0: the effect is no such commit."""
    return effect.attempts if isinstance(effect, Retried) else int(effect == "commit")


class Part(NamedTuple):
    """A tool, or code of a node."""

    name: str | None
    """Name of the tool; None: code of the node itself."""
    effect: Effect | None
    """The declared effect."""
    store: str | None = None
    """Class of a store that it holds instead of using the agent's store."""
    runs_here: bool = True
    """Whether this process runs it, and not the model's provider."""
    inner: bool = False
    """Whether only another tool calls it."""
    restarts: bool = False
    """Whether it is in a subgraph without memory, which runs again from its start after an interrupt."""


def parts_of(runnable: Runnable[Any, Any]) -> list[Part]:
    """Return every tool in a node, and the node's own code unless it is known to be harmless.

    The search follows bindings, sequences, fallbacks, subgraphs and the variables that functions use. Models, prompts,
    parsers and the nodes that LangChain and LangGraph create are harmless. Declared functions are not searched.
    """
    return list(_parts(runnable, {}))


def has_tool_node(runnable: Runnable[Any, Any]) -> bool:
    """True if a node is a ToolNode, or a binding, sequence or fallback that wraps a ToolNode."""
    if isinstance(runnable, ToolNode):
        return True
    return _is_composition(runnable) and any(map(has_tool_node, _runnables_in(_attributes(runnable))))


def has_sync_form(runnable: Any) -> bool:
    """False if a graph, or a part of it, was written only as a coroutine. Tools count as both."""
    if isinstance(runnable, CompiledStateGraph):
        if type(runnable).stream is Pregel.stream and type(runnable).astream is not Pregel.astream:
            return False
        routes = [branch.path for branches in runnable.builder.branches.values() for branch in branches.values()]
        return all(map(has_sync_form, [*(node.bound for node in runnable.nodes.values()), *routes]))
    attributes = _attributes(runnable)
    if attributes.get("afunc") is not None and attributes.get("func") is None:
        return False
    return not _is_composition(runnable) or all(map(has_sync_form, _runnables_in(attributes)))


def _parts(runnable: Runnable[Any, Any], seen: dict[int, Any]) -> Iterator[Part]:
    if id(runnable) in seen:
        return
    seen[id(runnable)] = runnable
    kind = declared_effect(runnable)
    if isinstance(runnable, BaseTool):
        functions = [getattr(runnable, name, None) for name in ("func", "coroutine")]
        yield Part(runnable.name, kind, _held_store(runnable, *functions))
        yield from _inner_tools(functions, dict(seen))
    elif kind is not None:
        yield Part(None, kind)
    elif isinstance(runnable, Pregel):
        for node in runnable.nodes.values():
            for part in _parts(node.bound, seen):
                yield part._replace(restarts=part.restarts or runnable.checkpointer is False)
    elif isinstance(runnable, ToolNode):
        for tool in runnable.tools_by_name.values():
            yield from _parts(tool, seen)
    elif functions := [given for name in _FUNCTIONS if (given := _attributes(runnable).get(name)) is not None]:
        yield from _function_parts(functions, runnable, seen)
    elif not isinstance(runnable, _HARMLESS):
        attributes = _attributes(runnable)
        if not _is_composition(runnable):
            yield Part(None, None)
        yield from _provider_tools(attributes.get("kwargs", {}).get("tools", ()))
        for child in _runnables_in(attributes):
            yield from _parts(child, seen)


def _inner_tools(functions: Iterable[Any], seen: dict[int, Any]) -> Iterator[Part]:
    """Return the tools that a tool's functions can reach, such as those of an agent that is used as a tool."""
    for function in filter(None, functions):
        for child in _runnables_in(_within_reach(function)):
            inner = (part for part in _parts(child, seen) if part.name is not None)
            yield from (part._replace(inner=True, store=None) for part in inner)


def _function_parts(functions: list[Any], carrier: Runnable[Any, Any], seen: dict[int, Any]) -> Iterator[Part]:
    """Return the code of a node in its sync and async form, and the tools that it can reach."""
    kind = next((kind for function in functions if (kind := declared_effect(function)) is not None), None)
    if kind is not None:
        yield Part(None, kind, _held_store(*functions))
        return
    for function in functions:
        owner = getattr(function, "__self__", None)
        if isinstance(owner, Runnable) and owner is not carrier:
            yield from _parts(owner, seen)  # `tool_node.invoke`, as a node
            continue
        within_reach = _within_reach(function)
        runnables = _runnables_in(within_reach)
        if _is_of_a_framework(function, owner):
            # A model node only shows its model the tools, which another node runs; provider tools run here.
            yield from _provider_tools(within_reach.get("default_tools", ()))
            runnables = (child for child in runnables if not isinstance(child, BaseTool))
        else:
            yield Part(None, None, _held_store(function))
        for child in runnables:
            yield from _parts(child, seen)


def declared_effect(thing: Any) -> Effect | None:
    """Return the effect that `effect` declared at a tool, function or node, or that a framework's own tool has."""
    sources = [thing]
    if isinstance(thing, BaseTool):
        sources = [thing, getattr(thing, "func", None), getattr(thing, "coroutine", None)]
        if _is_effect(kind := (thing.metadata or {}).get(_MARK)):
            return kind
    declared = (kind for source in sources if _is_effect(kind := getattr(source, _MARK, None)))
    return next(declared, "read" if any(map(_changes_only_the_state, sources)) else None)


def _changes_only_the_state(function: Any) -> bool:
    """True for `write_todos`, hand-offs, and deepagents' file tools if the files are in the agent's state."""
    module = getattr(function, "__module__", None)
    if module == "deepagents.middleware.filesystem" and inspect.isroutine(function):
        backend = getattr(_within_reach(function).get("self"), "backend", None)
        return type(backend).__module__ == "deepagents.backends.state"
    return module in _OF_THE_STATE


def _is_composition(runnable: Any) -> bool:
    """True if a runnable only runs its parts: a binding, a sequence, a parallel, fallbacks."""
    return type(runnable).__module__.startswith(("langchain_core.runnables.", "langgraph._internal."))


def _is_of_a_framework(function: Any, owner: Any) -> bool:
    """True if a function is a model node or a hook of a middleware."""
    if not inspect.isroutine(function):
        return False
    if (getattr(function, "__module__", None) or "").split(".")[0] in _FRAMEWORKS:
        return True
    return any(parent.__module__ == "langchain.agents.middleware.types" for parent in type(owner).__mro__)


def _within_reach(function: Any) -> dict[str, Any]:
    """Return the variables of a callable: attributes of its object, bound arguments, closure and globals."""
    if isinstance(function, functools.partial):
        return _within_reach(function.func) | dict(function.keywords) | {"": function.args}
    owner = getattr(function, "__self__", None)
    if not inspect.isroutine(function):
        owner, function = function, type(function).__call__
    try:
        variables = inspect.getclosurevars(inspect.unwrap(function))
    except (TypeError, ValueError):  # Written in C, or with a variable that has no value yet.
        return _attributes(owner)
    return {**_attributes(owner), **variables.globals, **variables.nonlocals}


def _held_store(*things: Any, depth: int = 2) -> str | None:
    """Return the class of a store that functions or objects can reach, directly or through what they use."""
    for thing in things:
        attributes = _attributes(thing)
        reached = _within_reach(thing) if callable(thing) else {}
        defaults = [getattr(thing, name, None) for name in ("__defaults__", "__kwdefaults__")]
        for held in (attributes, reached, *defaults):
            for store in _instances(BaseStore, held):
                return type(store).__name__
        used = [value for value in {**attributes, **reached}.values() if not isinstance(value, _NOT_SEARCHED)]
        if depth and (name := _held_store(*used, depth=depth - 1)):
            return name
    return None


def _attributes(thing: Any) -> dict[str, Any]:
    return dict(getattr(thing, "__dict__", {}))


def _runnables_in(held: Any) -> Iterator[Runnable[Any, Any]]:
    return _instances(Runnable, held)


def _instances(kind: Any, held: Any, depth: int = 3) -> Iterator[Any]:
    """Yield the instances of a class in a value and its containers."""
    if isinstance(held, kind):
        yield held
    elif depth and isinstance(held, Mapping | list | tuple | set | frozenset):
        for value in held.values() if isinstance(held, Mapping) else held:
            yield from _instances(kind, value, depth - 1)


def _provider_tools(tools: Iterable[Any]) -> Iterator[Part]:
    """Yield the tools that the model's provider runs while it answers, such as a web search."""
    for tool in tools:
        if not isinstance(tool, dict) or not tool or tool.get("type") in ("function", "custom"):
            continue
        if "type" in tool or not tool.keys() & {"name", "functionDeclarations", "function_declarations"}:
            yield Part(str(tool.get("name") or tool.get("type") or next(iter(tool))), None, runs_here=False)
