"""Find the models that a run may call: the names that they are charged under, and the caches that particles pass by."""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from types import CodeType, ModuleType
from typing import Any, TypeGuard

from langchain_core.caches import BaseCache
from langchain_core.globals import get_llm_cache, set_llm_cache
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.llms import BaseLLM
from langchain_core.outputs import Generation
from langchain_core.runnables import RunnableBinding
from langgraph.store.base import BaseStore
from typing_extensions import override

from amc_agents.budget import Bound, Budget, answer_limit
from amc_agents.critics.asking import CriticChatModel
from amc_agents.prices import Rates
from amc_agents.runtime.door import in_particle
from amc_agents.runtime.metering import WRAPPER_TYPES


def check_affordable(budget: Budget, prices: Mapping[str, Rates], *things: Any) -> None:
    """Check what can be known about a budget before any request is made.

    If it limits dollars, every model within reach of some objects needs a price. If it limits dollars or tokens, an
    answer of a critic needs an upper bound that fits: a policy would be paid before its critic is refused.

    Args:
        budget: the budget.
        prices: the prices that apply, those of the budget included.
        *things: agents, critics, worlds, functions, ...

    Raises:
        UnboundedRequest: a model has no price, or an answer of a critic has no limit or exceeds the budget.
    """
    if not {"tokens", "dollars"}.isdisjoint(budget.limits):
        for bound in sorted(known_bounds(things), key=lambda bound: bound.model):
            budget.require_room(bound, prices)


def known_bounds(things: Iterable[Any]) -> set[Bound]:
    """Return the models within reach of some objects, as requests to them are charged.

    The bound of an answer is known for critics only, and else 1 token: other models may be called with any limit.

    The search follows attributes, containers, nodes, tools, closures, and the globals that your own functions use. A
    component that makes requests itself, not through a LangChain model, has an attribute `charged_as`: the name, or
    None before it is known.
    """
    bounds: set[Bound] = set()
    for thing, name in _within_reach(things):
        if isinstance(thing, CriticChatModel):
            bounds.add(_bound_of_critic(thing))
        elif name is not None:
            bounds.add(Bound(name, 1, 1))
    return bounds


def _bound_of_critic(critic: CriticChatModel) -> Bound:
    """Return the bound of a critic's answer, whatever its prompt."""
    model, settings = critic.model, critic.settings
    default = model._get_ls_params(**settings).get("ls_max_tokens")
    limit = answer_limit(model._get_invocation_params(**settings), default)
    return Bound(_request_name(model, settings), 0, limit)


def _within_reach(things: Iterable[Any]) -> Iterator[tuple[Any, str | None]]:
    """Yield the objects within reach of some, each with its name if it makes requests; what these hold is left out."""
    seen: dict[int, Any] = {}
    waiting = deque((thing, 0) for thing in things)
    while waiting and len(seen) < _MOST_OBJECTS:
        thing, depth = waiting.popleft()
        if isinstance(thing, _LEAVES) or id(thing) in seen:
            continue
        seen[id(thing)] = thing  # Kept, so that no other object gets its id.
        name = _name_of(thing)
        yield thing, name
        if name is None and depth < _DEPTH:
            waiting.extend((child, depth + 1) for child in _children(thing))


class _PassedBy(BaseCache):
    """A cache of LangChain, which particles pass by: it would give the same answer to all of them."""

    def __init__(self, cache: BaseCache) -> None:
        self.inner = cache

    @override
    def lookup(self, prompt: str, llm_string: str) -> Sequence[Generation] | None:
        return None if in_particle() else self.inner.lookup(prompt, llm_string)

    @override
    def update(self, prompt: str, llm_string: str, return_val: Sequence[Generation]) -> None:
        if not in_particle():
            self.inner.update(prompt, llm_string, return_val)

    @override
    def clear(self, **options: Any) -> None:
        self.inner.clear(**options)

    @override
    async def alookup(self, prompt: str, llm_string: str) -> Sequence[Generation] | None:
        return None if in_particle() else await self.inner.alookup(prompt, llm_string)

    @override
    async def aupdate(self, prompt: str, llm_string: str, return_val: Sequence[Generation]) -> None:
        if not in_particle():
            await self.inner.aupdate(prompt, llm_string, return_val)

    @override
    async def aclear(self, **options: Any) -> None:
        await self.inner.aclear(**options)

    def __getattr__(self, name: str) -> Any:
        """Return what the cache has besides LangChain's interface."""
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


def pass_caches_by(*things: Any) -> None:
    """Let particles pass by LangChain's cache (`set_llm_cache`), and those of the models within reach of some objects.

    Outside of particles the caches work as before.
    """
    if (shared := get_llm_cache()) is not None and not isinstance(shared, _PassedBy):
        set_llm_cache(_PassedBy(shared))
    for thing, _ in _within_reach(things):
        model = thing.bound if isinstance(thing, RunnableBinding) else thing
        if not _makes_requests(model):
            continue
        if isinstance(model.cache, BaseCache) and not isinstance(model.cache, _PassedBy):
            model.cache = _PassedBy(model.cache)


def _name_of(thing: Any) -> str | None:
    """Return the name under which the thing's own requests are charged; None: it makes none, or it is not known."""
    if isinstance(thing, RunnableBinding) and _makes_requests(thing.bound):
        return _request_name(thing.bound, thing.kwargs)
    if _makes_requests(thing):
        return _request_name(thing, {})
    # Found without `__getattr__`: a proxy of a world would send a request to its process.
    name = None if inspect.getattr_static(thing, "charged_as", None) is None else thing.charged_as
    return name if isinstance(name, str) else None


def _makes_requests(thing: Any) -> TypeGuard[BaseChatModel | BaseLLM]:
    return isinstance(thing, BaseChatModel | BaseLLM) and thing._llm_type not in WRAPPER_TYPES


def _request_name(model: BaseChatModel | BaseLLM, options: Mapping[str, Any]) -> str:
    """Return the name that LangChain gives to the callbacks of a request."""
    facts = model._get_ls_params(**options)
    provider, name = facts.get("ls_provider") or "", facts.get("ls_model_name") or ""
    return f"{provider}:{name}" if provider and name else name


def _children(thing: Any) -> Iterator[Any]:
    if isinstance(thing, dict):
        yield from list(thing.values())
    elif isinstance(thing, list | tuple | set | frozenset | deque):
        yield from thing
    elif isinstance(thing, functools.partial):
        yield from (thing.func, thing.args, thing.keywords)
    elif inspect.isroutine(thing):
        yield from _used_by(thing)
    else:
        yield from list(vars(thing).values()) if hasattr(thing, "__dict__") else ()
        if is_dataclass(thing):
            yield from (getattr(thing, field.name, None) for field in fields(thing))
        if callable(thing):
            yield from _used_by(type(thing).__call__)


def _used_by(function: Callable[..., Any]) -> Iterator[Any]:
    """Yield the object of a method, and the variables that a function uses."""
    for name in ("__self__", "__func__", "__wrapped__", "__defaults__", "__kwdefaults__"):
        yield getattr(function, name, None)
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # A variable that has no value yet.
            yield cell.cell_contents
    code = getattr(function, "__code__", None)
    if code is not None and not (getattr(function, "__module__", None) or "").startswith(_LIBRARIES):
        variables = function.__globals__
        yield from (variables[name] for name in _names_in(code) if name in variables)


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield the names in a function, its inner functions and comprehensions."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names_in(inner)


_LEAVES = (ModuleType, type, str, bytes, bytearray, int, float, complex, type(None), BaseStore)
_LIBRARIES = ("amc_agents.", "langchain", "langgraph", "pydantic", "asyncio", "concurrent", "threading", "httpx")
"""Modules whose functions have no models of the user in their globals."""
_DEPTH = 12
"""Greatest distance from a given object."""
_MOST_OBJECTS = 50_000
"""Most objects that are examined."""
