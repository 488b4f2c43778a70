"""The requests of an agent's models: counted wherever they are made, and never answered by a cache.

The models are found by what the agent holds: `within_reach`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from types import CodeType, ModuleType
from typing import Any, NamedTuple, TypeGuard
from uuid import UUID

from langchain_core.caches import BaseCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.globals import get_llm_cache, set_llm_cache
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.llms import BaseLLM
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, Generation, LLMResult
from langchain_core.runnables import RunnableBinding
from langchain_core.tracers.context import register_configure_hook
from langgraph.store.base import BaseStore
from typing_extensions import override

from amc_agents.context import change_context, particle_context
from amc_agents.runtime.door import in_particle, is_abandoned
from amc_agents.usage import LANGCHAIN_COUNTS, OPENAI_COUNTS, Meter, Usage, reported_usage


class _Request(NamedTuple):
    """Metadata of a running request."""

    provider: str = ""
    model: str = ""
    n: int = 1
    """Number of requested candidates."""
    reserved: Usage | None = None
    """What a budget has reserved for it."""


_UNKNOWN = _Request()


class Answer(NamedTuple):
    """The metadata of an answer."""

    usage: Usage
    facts: Mapping[str, Any]
    """Such as the names of the model and of the reason for its end."""


WRAPPER_TYPES = frozenset({"actor-critic", "critique-refine"})
"""`_llm_type` of chat models that send no requests themselves; the models that they call are counted."""
OTHER_ROLES = frozenset({"critic", "world model", "role"})
"""Tags of requests by other roles, which record their own usage."""


class ContextHandler(BaseCallbackHandler):
    """A handler of model requests that its context adds to each of them, so that no run needs to pass it on."""

    run_inline = True
    ignore_chain = True
    ignore_agent = True
    ignore_retriever = True
    ignore_custom_event = True


def observe_requests(observer: ContextHandler | None) -> ContextHandler | None:
    """Let another handler receive the events of all further requests and tool calls of this context.

    Its events come through the context's `PolicyMeter`, if there is one: LangChain examines every handler of every
    request, which costs more than all that is done with its events.

    Returns:
        The observer until now.
    """
    before = request_observer()
    change_context(observer=observer)
    if policy_meter() is None:
        _handler.set(observer)
    return before


def request_observer() -> ContextHandler | None:
    """Return the observer of this context, or None."""
    observer: ContextHandler | None = particle_context().observer
    return observer


class PolicyMeter(ContextHandler):
    """Adds every request below it to a meter, under the role "policy" and the model's `provider:name`.

    Requests with the tag of another role, and models that only call other models, are not counted.

    Args:
        meter: counts the requests.
        around: the meter of a surrounding run, which counts them too.
    """

    def __init__(self, meter: Meter, around: PolicyMeter | None = None) -> None:
        self.meter = meter
        self.around = around
        self._requests: dict[UUID, _Request | None] = {}

    @property
    def ignore_agent(self) -> bool:  # type: ignore[override]
        """Ignore tools, for which LangChain asks here, unless an observer wants them."""
        return request_observer() is None

    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], *, run_id: UUID, **details: Any
    ) -> None:
        """Remember the model: an answer may not name it, and a failure cannot."""
        _refuse_if_abandoned()
        self._requests[run_id] = _request_of(details)
        if (observer := request_observer()) is not None:
            observer.on_chat_model_start(serialized, messages, run_id=run_id, **details)

    def on_llm_start(self, serialized: dict[str, Any], prompts: list[str], *, run_id: UUID, **details: Any) -> None:
        """Remember a plain-text model."""
        _refuse_if_abandoned()
        self._requests[run_id] = _request_of(details)
        if (observer := request_observer()) is not None:
            observer.on_llm_start(serialized, prompts, run_id=run_id, **details)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        """Count a request once: each of its n candidates carries the usage of all."""
        request, answer = self._requests.pop(run_id, _UNKNOWN), None
        if request is not None:
            answer = answer_of(response)
            self._add(answer.usage, _named(answer.facts, request))
        if (observer := request_observer()) is not None:
            observer.on_llm_end(response, run_id=run_id, answer=answer)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Count a failed request."""
        request = self._requests.pop(run_id, _UNKNOWN)
        if request is not None:
            self._add(Usage(calls=1, missing=1), _named({}, request))
        if (observer := request_observer()) is not None:
            observer.on_llm_error(error, run_id=run_id)

    @contextmanager
    def holding_back(self, run_id: UUID, reserved: Usage) -> Iterator[None]:
        """Regard a request as made only when the block, which reserves it, has ended without an error."""
        held = {run_id: self._requests.pop(run_id)} if run_id in self._requests else {}
        yield
        for request in held.values():
            self._requests[run_id] = None if request is None else request._replace(reserved=reserved)

    def count_abandoned(self) -> None:
        """Count requests without an end: LangChain reports none for a request that was cancelled.

        What it cost is not known. A budget charges what it had reserved, and so much is counted here.
        """
        for run_id, request in list(self._requests.items()):
            if request is not None:
                self._requests[run_id] = None  # A thread may still answer it.
                self._add(request.reserved or Usage(calls=1, missing=1), _named({}, request))

    def on_tool_start(self, serialized: dict[str, Any], input_str: str, *, run_id: UUID, **details: Any) -> None:
        """Tell the observer."""
        if (observer := request_observer()) is not None:
            observer.on_tool_start(serialized, input_str, run_id=run_id, **details)

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        """Tell the observer."""
        if (observer := request_observer()) is not None:
            observer.on_tool_end(output, run_id=run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Tell the observer."""
        if (observer := request_observer()) is not None:
            observer.on_tool_error(error, run_id=run_id)

    def _add(self, usage: Usage, model: str) -> None:
        self.meter.add("policy", usage, model)
        if self.around is not None:
            self.around._add(usage, model)


# Models and other runnables that configure callbacks add the meter of their context to their run. As a callback of the
# particle's run it would be inherited by each node, whose events cost a tenth of a step and are not counted.
_handler: ContextVar[ContextHandler | None] = ContextVar("amc_request_handler", default=None)
"""The meter of this context; without one, the observer."""
register_configure_hook(_handler, inheritable=False)


def policy_meter() -> PolicyMeter | None:
    """Return the meter of this context, or None."""
    handler = _handler.get()
    return handler if isinstance(handler, PolicyMeter) else None


def count_requests(meter: PolicyMeter | None) -> None:
    """Make a meter count all requests of this context; None: none counts them."""
    _handler.set(request_observer() if meter is None else meter)


@contextmanager
def counting_requests(meter: PolicyMeter) -> Iterator[None]:
    """Make a meter count all requests of a block."""
    token = _handler.set(meter)
    try:
        yield
    finally:
        _handler.reset(token)


def _refuse_if_abandoned() -> None:
    """Make no request for a particle that has failed or was cancelled, and whose thread goes on.

    LangChain does not drop this exception, and neither a retry nor a catch-all goes on after it.
    """
    if is_abandoned():
        raise asyncio.CancelledError("the particle that makes this request has failed or was cancelled")


def _request_of(details: Mapping[str, Any]) -> _Request | None:
    """Return the metadata of a request; None: not counted."""
    metadata, parameters = details.get("metadata") or {}, details.get("invocation_params") or {}
    if parameters.get("_type") in WRAPPER_TYPES or not OTHER_ROLES.isdisjoint(details.get("tags") or ()):
        return None
    return _Request(metadata.get("ls_provider") or "", metadata.get("ls_model_name") or "", parameters.get("n") or 1)


def _messages(response: LLMResult) -> list[AIMessage]:
    return [
        candidate.message
        for batch in response.generations
        for candidate in batch
        if isinstance(candidate, ChatGeneration) and isinstance(candidate.message, AIMessage)
    ]


def answer_of(response: LLMResult) -> Answer:
    """Return the metadata of an answer."""
    return Answer(usage_of(response), facts_of(response))


def usage_of(response: LLMResult) -> Usage:
    """Return the usage of a request, as reported by its answer."""
    for message in _messages(response):
        usage = reported_usage(message.usage_metadata, LANGCHAIN_COUNTS)
        # An answer from LangChain's cache may report only a cost.
        if not usage.missing:
            return usage
    # Plain-text models, and models older than `usage_metadata`.
    return reported_usage((response.llm_output or {}).get("token_usage"), OPENAI_COUNTS)


def model_of(response: LLMResult) -> str:
    """Return `provider:name` of the model that answered; "" if the answer does not name it."""
    return _named(facts_of(response), _UNKNOWN)


def facts_of(response: LLMResult) -> dict[str, Any]:
    """Return the answer's metadata: with n > 1 it is on the result only, in a stream on the message only."""
    facts, messages = response.llm_output or {}, _messages(response)
    return {**facts, **messages[0].response_metadata} if messages else facts


def _named(facts: Mapping[str, Any], request: _Request) -> str:
    """Return `provider:name` from the answer, which may be more exact than the request; "" if unknown."""
    provider = facts.get("model_provider") or request.provider
    model = facts.get("model_name") or request.model
    # A stream of n candidates is joined into a single message, which joins their names too.
    once = model[: len(model) // request.n]
    model = once if request.n > 1 and model == once * request.n else model
    return f"{provider}:{model}" if provider and model else model


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
    for thing, _ in within_reach(things):
        model = thing.bound if isinstance(thing, RunnableBinding) else thing
        if not makes_requests(model):
            continue
        if isinstance(model.cache, BaseCache) and not isinstance(model.cache, _PassedBy):
            model.cache = _PassedBy(model.cache)


def within_reach(things: Iterable[Any]) -> Iterator[tuple[Any, str | None]]:
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


def _name_of(thing: Any) -> str | None:
    """Return the name under which the thing's own requests are charged; None: it makes none, or it is not known."""
    if isinstance(thing, RunnableBinding) and makes_requests(thing.bound):
        return request_name(thing.bound, thing.kwargs)
    if makes_requests(thing):
        return request_name(thing, {})
    # Found without `__getattr__`: a proxy of a world would send a request to its process.
    name = None if inspect.getattr_static(thing, "charged_as", None) is None else thing.charged_as
    return name if isinstance(name, str) else None


def makes_requests(thing: Any) -> TypeGuard[BaseChatModel | BaseLLM]:
    """Return whether the thing is a model of LangChain that sends requests itself."""
    return isinstance(thing, BaseChatModel | BaseLLM) and thing._llm_type not in WRAPPER_TYPES


def request_name(model: BaseChatModel | BaseLLM, options: Mapping[str, Any]) -> str:
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
