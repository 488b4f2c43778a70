"""Reserve the requests of LangChain models under the budgets of their context, by LangChain's callbacks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import LLMResult
from langchain_core.tracers.context import register_configure_hook

from amc_agents.budget import Bound, Budget, Claim, Purse, answer_limit, claimed, claimed_in_thread, paying, spenders
from amc_agents.critics.asking import CriticChatModel
from amc_agents.errors import BudgetExhausted, UnboundedRequest
from amc_agents.logs import drop_records
from amc_agents.prices import Rates
from amc_agents.runtime.metering import (
    WRAPPER_TYPES,
    ContextHandler,
    policy_meter,
    request_name,
    usage_of,
    within_reach,
)
from amc_agents.usage import Usage

_SENT = ("tools", "functions", "tool_choice", "response_format", "system", "text")
"""Settings of a request that become tokens of its prompt."""
_MESSAGE_TOKENS = 16
"""At most so many tokens mark the start, the role and the end of a message."""
_TOOL_TOKENS = 1000
"""At most so many tokens are added by a provider that explains tool calls to its model."""


class BudgetKeeper(ContextHandler):
    """Reserves a request before it is made, and charges its usage when it ends."""

    raise_error = True

    def __init__(self) -> None:
        self._claims: dict[UUID, Claim] = {}

    # LangChain awaits async handlers under async calls, but logs and drops their errors under sync calls.
    @property
    def on_chat_model_start(self) -> Any:
        """Reserve a request to a chat model: an async function in an event loop, else a sync function."""
        return self._in_loop() if _loop() is not None else self._reserve_in_thread

    @property
    def on_llm_start(self) -> Any:
        """Reserve a request to a plain-text model."""
        return self.on_chat_model_start

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        """Charge the reported usage; without a report, the upper bound."""
        self._settle(run_id, usage_of(response))

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Charge a call without tokens if the server answered with an error, and otherwise the upper bound."""
        answered = isinstance(getattr(error, "status_code", None), int)
        self._settle(run_id, Usage(calls=1) if answered else None)

    def _in_loop(self) -> Any:
        loop = _loop()

        async def reserve(serialized: Any, prompts: Sequence[Any], *, run_id: UUID, **details: Any) -> None:
            if _loop() is loop:
                if (bound := _bound_of(prompts, details)) is not None:
                    with _reserving(run_id, bound):
                        self._claims[run_id] = await claimed(bound)
                return
            # A sync call in a coroutine: LangChain runs this function in another thread while the loop is blocked, so
            # nothing can be waited for. Only this exception, which LangChain does not drop, prevents the request.
            try:
                self._reserve_in_thread(serialized, prompts, run_id=run_id, may_wait=False, **details)
            except (BudgetExhausted, UnboundedRequest) as error:
                raise asyncio.CancelledError(str(error)) from error

        return reserve

    def _reserve_in_thread(
        self, serialized: Any, prompts: Sequence[Any], *, run_id: UUID, may_wait: bool = True, **details: Any
    ) -> None:
        if (bound := _bound_of(prompts, details)) is not None:
            with _reserving(run_id, bound):
                self._claims[run_id] = claimed_in_thread(bound, may_wait=may_wait)

    def _settle(self, run_id: UUID, usage: Usage | None) -> None:
        claim = self._claims.pop(run_id, None)
        if claim is not None:
            claim.settle(usage)


_THE_KEEPER = BudgetKeeper()
# LangChain also logs each error that it raises, which would put a line on stderr for every refused request.
drop_records("langchain_core.callbacks.manager", about=BudgetKeeper.__name__)
_keeper: ContextVar[BudgetKeeper | None] = ContextVar("amc_budget_keeper", default=None)
register_configure_hook(_keeper, inheritable=False)


def keep_budgets() -> None:
    """Reserve all requests of LangChain models in this context."""
    _keeper.set(_THE_KEEPER)


@contextmanager
def paying_from(purse: Purse | None) -> Iterator[None]:
    """Reserve all requests inside the block from an open purse; None: do nothing."""
    if purse is None:
        yield
        return
    token = _keeper.set(_THE_KEEPER)
    try:
        with paying(purse):
            yield
    finally:
        _keeper.reset(token)


@contextmanager
def bounded(budget: Budget | None, prices: Mapping[str, Rates] | None = None, *users: Any) -> Iterator[None]:
    """Bound all requests inside the block by a budget; do nothing if it is None or bounds this context already.

    Args:
        budget: the budget.
        prices: prices of the configuration file.
        *users: objects whose models the block may call.

    Raises:
        UnboundedRequest: the budget limits dollars, and a model within reach of `users` has no price; or an answer of a
            critic among them does not fit the budget.
    """
    if budget is None or any(spender.purse.budget is budget for spender in spenders()):
        yield
        return
    check_affordable(budget, {**(prices or {}), **budget.prices}, *users)
    purse = Purse(budget, prices)
    try:
        with paying_from(purse):
            yield
    finally:
        purse.close()


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
    for thing, name in within_reach(things):
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
    return Bound(request_name(model, settings), 0, limit)


def _reserving(run_id: UUID, bound: Bound) -> AbstractContextManager[None]:
    """A block that reserves a request: until it is reserved, the meter does not regard it as made."""
    meter = policy_meter()
    if meter is None:
        return nullcontext()
    return meter.holding_back(run_id, _usage_of_bound(bound))


def _usage_of_bound(bound: Bound) -> Usage:
    """Return an upper bound as usage; an answer without a limit is not bounded, so its tokens are missing."""
    if bound.output_tokens is None:
        return Usage(bound.calls, missing=bound.calls)
    return Usage(bound.calls, bound.input_tokens, bound.output_tokens, estimated=bound.calls)


def _bound_of(prompts: Sequence[Any], details: Mapping[str, Any]) -> Bound | None:
    """Return the upper bound of a request; None: a model that only calls other models, or no budget."""
    parameters, metadata = details.get("invocation_params") or {}, details.get("metadata") or {}
    if not spenders() or parameters.get("_type") in WRAPPER_TYPES:
        return None
    provider, name = metadata.get("ls_provider") or "", metadata.get("ls_model_name") or ""
    return Bound(
        f"{provider}:{name}" if provider and name else name,
        sum(map(prompt_bound, prompts)) + _settings_bound(parameters),
        answer_limit(parameters, metadata.get("ls_max_tokens")),
    )


def prompt_bound(prompt: str | Sequence[BaseMessage]) -> int:
    """Return an upper bound of the tokens of a prompt: its bytes, and some tokens for each message.

    A token of text is at least a byte long. An image given by its address is not bounded.
    """
    if isinstance(prompt, str):
        return len(prompt.encode()) + _MESSAGE_TOKENS
    return sum(_message_bound(message) for message in prompt) + _MESSAGE_TOKENS


def _message_bound(message: BaseMessage) -> int:
    content = message.content if isinstance(message.content, str) else _json(message.content)
    calls = _json(message.tool_calls) if isinstance(message, AIMessage) and message.tool_calls else ""
    names = f"{message.name or ''}{getattr(message, 'tool_call_id', '')}"
    more = _json(message.additional_kwargs) if message.additional_kwargs else ""
    return len(f"{content}{calls}{names}{more}".encode(errors="replace")) + _MESSAGE_TOKENS


def _settings_bound(parameters: Mapping[str, Any]) -> int:
    sent = {name: parameters[name] for name in _SENT if parameters.get(name)}
    return len(_json(sent).encode(errors="replace")) + _TOOL_TOKENS if sent else 0


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
