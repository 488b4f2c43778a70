"""Counts what the wrapped agent's models use, whatever they are and wherever the agent calls them."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.tracers.context import register_configure_hook

from amc_agents.usage import LANGCHAIN_COUNTS, OPENAI_COUNTS, Meter, Usage, reported_usage


class _Asked(NamedTuple):
    """What a request under way is told by the model that makes it."""

    provider: str = ""
    model: str = ""
    n: int = 1
    """Candidates wanted."""


_UNKNOWN = _Asked()

WRAPPER_TYPES = frozenset({"actor-critic", "critique-refine"})
"""`_llm_type` of chat models that send no requests themselves: those of the models they ask are counted."""
OTHER_ROLES = frozenset({"critic", "world model", "role"})
"""Tags of requests that are not the policy's: whoever makes them records them under that role."""


class PolicyMeter(BaseCallbackHandler):
    """Adds every request below it to a meter, under the role "policy" and the model's `provider:name`.

    Left out: requests tagged with another role, and models that only ask other models.

    Args:
        meter: counts the requests.
        around: the meter of a run around this one, which counts them too.
    """

    run_inline = True
    ignore_chain = True
    ignore_agent = True
    ignore_retriever = True
    ignore_custom_event = True

    def __init__(self, meter: Meter, around: PolicyMeter | None = None) -> None:
        self.meter = meter
        self._around = around
        self._asked: dict[UUID, _Asked | None] = {}

    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], *, run_id: UUID, **told: Any
    ) -> None:
        """Remember which model is asked: an answer need not say it, and a failure cannot."""
        self._asked[run_id] = _asked(told)

    def on_llm_start(self, serialized: dict[str, Any], prompts: list[str], *, run_id: UUID, **told: Any) -> None:
        """The same for a model of plain text."""
        self._asked[run_id] = _asked(told)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        """Count one request. Each of its n candidates carries the usage of all: it is counted once."""
        asked = self._asked.pop(run_id, _UNKNOWN)
        if asked is not None:
            self._add(usage_of(response), _named(_facts(response), asked))

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """A failed request is a request."""
        asked = self._asked.pop(run_id, _UNKNOWN)
        if asked is not None:
            self._add(Usage(calls=1, missing=1), _named({}, asked))

    def _add(self, usage: Usage, model: str) -> None:
        self.meter.add("policy", usage, model)
        if self._around is not None:
            self._around._add(usage, model)


# Models, and whatever else sets callbacks up for itself, add the meter of their context to their own run. As a callback
# of the particle's run it would be handed down to each node, whose events cost a tenth of a step and are not counted.
_current: ContextVar[PolicyMeter | None] = ContextVar("amc_policy_meter", default=None)
register_configure_hook(_current, inheritable=False)


def policy_meter() -> PolicyMeter | None:
    """What counts the requests of the run that is under way here."""
    return _current.get()


def count_requests(meter: PolicyMeter) -> None:
    """Let a meter count all requests of this context."""
    _current.set(meter)


def _asked(told: Mapping[str, Any]) -> _Asked | None:
    """What is told of a request; None where it is not to be counted."""
    metadata, parameters = told.get("metadata") or {}, told.get("invocation_params") or {}
    if parameters.get("_type") in WRAPPER_TYPES or not OTHER_ROLES.isdisjoint(told.get("tags") or ()):
        return None
    return _Asked(metadata.get("ls_provider") or "", metadata.get("ls_model_name") or "", parameters.get("n") or 1)


def _messages(response: LLMResult) -> list[AIMessage]:
    return [
        candidate.message
        for batch in response.generations
        for candidate in batch
        if isinstance(candidate, ChatGeneration) and isinstance(candidate.message, AIMessage)
    ]


def usage_of(response: LLMResult) -> Usage:
    """What one request used, as its answer reports it."""
    for message in _messages(response):
        usage = reported_usage(message.usage_metadata, LANGCHAIN_COUNTS)
        # An answer from LangChain's cache may report only a cost.
        if not usage.missing:
            return usage
    # Plain-text models, and models older than `usage_metadata`.
    return reported_usage((response.llm_output or {}).get("token_usage"), OPENAI_COUNTS)


def model_of(response: LLMResult) -> str:
    """`provider:name` of whoever answered; "" where the answer does not say."""
    return _named(_facts(response), _UNKNOWN)


def _facts(response: LLMResult) -> dict[str, Any]:
    """What the answer says about itself: with n > 1 on the whole only, in a stream on the message only."""
    facts, messages = response.llm_output or {}, _messages(response)
    return {**facts, **messages[0].response_metadata} if messages else facts


def _named(facts: Mapping[str, Any], asked: _Asked) -> str:
    """`provider:name` as answered, which may be more exact than what was asked for; "" where nobody says."""
    provider = facts.get("model_provider") or asked.provider
    model = facts.get("model_name") or asked.model
    # A stream of n candidates is joined into one message, and their names with it.
    once = model[: len(model) // asked.n]
    model = once if asked.n > 1 and model == once * asked.n else model
    return f"{provider}:{model}" if provider and model else model
