"""Count the usage of an agent's models, wherever the agent calls them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.tracers.context import register_configure_hook

from amc_agents.context import change_context, particle_context
from amc_agents.runtime.door import is_abandoned
from amc_agents.usage import LANGCHAIN_COUNTS, OPENAI_COUNTS, Meter, Usage, reported_usage


class _Request(NamedTuple):
    """Metadata of a running request."""

    provider: str = ""
    model: str = ""
    n: int = 1
    """Number of requested candidates."""


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
    def holding_back(self, run_id: UUID) -> Iterator[None]:
        """Regard a request as made only when the block has ended without an error."""
        held = {run_id: self._requests.pop(run_id)} if run_id in self._requests else {}
        yield
        self._requests.update(held)

    def count_abandoned(self) -> None:
        """Count requests without an end: LangChain reports none for a request that was cancelled."""
        for run_id, request in list(self._requests.items()):
            if request is not None:
                self._requests[run_id] = None  # A thread may still answer it.
                self._add(Usage(calls=1, missing=1), _named({}, request))

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
