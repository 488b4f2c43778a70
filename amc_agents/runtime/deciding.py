"""A chat model whose answers are decisions over the answers of another model, and its middleware and node.

The common part of LAC's and PNLC's: it handles requests, events, traces, the critic of the call, and sync and async
entry points. A subclass decides.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ExtendedModelResponse, ModelRequest, ModelResponse
from langchain_core.callbacks import AsyncCallbackManager, AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LangSmithParams, LanguageModelInput, ModelProfile
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig, RunnableLambda
from langchain_core.runnables.config import ensure_config
from langgraph.types import Command
from pydantic import ConfigDict, Field, PrivateAttr, SkipValidation
from typing_extensions import TypedDict, override

from amc_agents.budget import Budget
from amc_agents.concurrency.background import run_in_background
from amc_agents.concurrency.gather import RateGate, at_most, gated
from amc_agents.config import ConfigLike
from amc_agents.critics.adapting import connect, failing
from amc_agents.errors import CriticError
from amc_agents.logs import log, room_logger
from amc_agents.models.seeding import particle_rng, use_rng
from amc_agents.runtime.budget_keeper import bounded
from amc_agents.runtime.calls import ChosenCritic, CriticChoice, OfferedCritics
from amc_agents.runtime.contract import as_mapping
from amc_agents.runtime.effects import effect
from amc_agents.runtime.inner_calls import (
    as_chunk,
    callbacks_below,
    named_critic,
    running_below,
    stream_writer,
    unbound,
)
from amc_agents.runtime.tracing import traced_work

_log = room_logger(__name__)

Record = dict[str, Any]
"""A decision as plain values: the choice and its reasons, the critic and its source, requests and tokens."""
Sink = Callable[[Record], None]
"""Receives the records of decisions as they are made."""


class DecidingOptions(TypedDict, total=False):
    """Options that the models, nodes and middlewares of LAC and PNLC share."""

    seed: int | None
    """Makes decisions reproducible, as described at `DecidingModel.seed`."""
    critics: OfferedCritics | None
    """The critics that a call may choose by name, or `AllowedCritics`, as in `amc`. Default: a call may name any
    critic."""
    budget: Budget | None
    """Limits for all requests of the decisions, shared by whatever else the `Budget` is given to. A decision that it
    does not allow raises `BudgetExhausted`. Default: no limit."""
    config: ConfigLike | None
    """The configuration file's path, or a `Config`. Default: the file that AMC_CONFIG names."""


class DecisionRequest(NamedTuple):
    """The input of a decision."""

    messages: list[BaseMessage]
    """The conversation."""
    call: dict[str, Any]
    """Arguments of every request to the actor."""
    chosen: ChosenCritic
    """The critic."""
    rng: np.random.Generator | None
    """Random generator of the decision; None: not seeded."""
    callbacks: AsyncCallbackManager
    """Callbacks of the requests."""


class DecisionResult(NamedTuple):
    """The output of a decision."""

    message: AIMessage
    """The chosen message as the actor wrote it."""
    record: Record
    """The decision as plain values."""
    summary: Record
    """The part of the record that goes into the message's `response_metadata`."""


class DecidingModel(BaseChatModel):
    """A chat model whose answer a method chooses among the answers of another model."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    method: ClassVar[str]
    """Prefix of the events' types, and key of the decision's summary in `response_metadata`."""
    fits_any_loop: ClassVar[bool] = True
    """The requests of a decision find the right client themselves."""

    actor: SkipValidation[BaseChatModel]
    """The policy."""
    bound: dict[str, Any] = Field(default_factory=dict)
    """Arguments of every request to the actor."""
    critics: SkipValidation[CriticChoice] = Field(repr=False)
    settings: SkipValidation[Any]
    """The method's settings, with a field `on_critic_error`."""
    seed: int | None = Field(default=None, ge=0)
    """Makes the decision reproducible for a given conversation, if the models draw from `amc_agents.models.seeding`.
    Inside a particle the particle's random stream is used instead, so that siblings differ."""
    sink: SkipValidation[Sink | None] = Field(default=None, repr=False)
    """Receives the record of each decision, in addition to the stream and the trace."""
    budget: SkipValidation[Budget | None] = Field(default=None, repr=False)
    """Limits for the requests of all decisions."""
    prices: Mapping[str, Any] = Field(default_factory=dict, repr=False)
    """Prices of the configuration file, for the budget."""
    _gate: RateGate = PrivateAttr(default_factory=RateGate)
    """Holds back the requests of all decisions after a rate limit."""
    system_is_task: bool = False
    """Treat a leading system message as part of the task that the critic reads."""
    cache: Any = False
    """Decisions are not cached; the actor's cache applies to its requests."""

    @abstractmethod
    async def _decide(self, request: DecisionRequest) -> DecisionResult:
        """Make a decision."""

    @property
    @abstractmethod
    def _traced_settings(self) -> dict[str, Any]:
        """The settings that a trace shows."""

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"actor": self.model_name, "critic": self.critics.own.name, **self._traced_settings}

    @property
    def model_name(self) -> str:
        """The actor's name, by which LangChain looks up a model's abilities."""
        names = (getattr(self.actor, name, None) for name in ("model_name", "model", "model_id"))
        return next((name for name in names if isinstance(name, str) and name), type(self.actor).__name__)

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """Bind tools to the actor: its drafts may call them, and the chosen draft's calls are returned.

        `with_structured_output` therefore returns the structured answer that was chosen, always by a tool call.
        """
        actor, bound = unbound(self.actor.bind_tools(tools, **kwargs))
        return RunnableBinding(bound=self.model_copy(update={"actor": actor}), kwargs=bound)

    def invoke(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AIMessage:
        """Make a decision. `critic=` names another critic for this call, as `configurable` and a graph's context do.

        `max_concurrency` in the config limits the requests that are in progress at the same time.
        """
        return super().invoke(input, config, stop=stop, **_with_config(kwargs, config))

    @override
    async def ainvoke(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AIMessage:
        return await super().ainvoke(input, config, stop=stop, **_with_config(kwargs, config))

    def stream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> Iterator[AIMessageChunk]:
        """Make a decision and yield it as a single chunk."""
        yield as_chunk(self.invoke(input, config, stop=stop, **kwargs))

    @override
    async def astream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[AIMessageChunk]:
        yield as_chunk(await self.ainvoke(input, config, stop=stop, **kwargs))

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        message = run_in_background(self._answer(messages, run_manager, {**kwargs, "stop": stop}), n_workers=1)
        if run_manager is not None and self._streams:
            run_manager.on_llm_new_token(message.text, chunk=ChatGenerationChunk(message=as_chunk(message)))
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        message = await self._answer(messages, run_manager, {**kwargs, "stop": stop})
        if run_manager is not None and self._streams:
            await run_manager.on_llm_new_token(message.text, chunk=ChatGenerationChunk(message=as_chunk(message)))
        return ChatResult(generations=[ChatGeneration(message=message)])

    @property
    def _streams(self) -> bool:
        """True if callbacks get the answer as a chunk, as those of `stream_mode="messages"` expect."""
        return self.disable_streaming is not True

    async def _answer(self, messages: list[BaseMessage], run_manager: Any, call: dict[str, Any]) -> AIMessage:
        named, source = call.pop("critic", None), call.pop("critic_from", "call")
        limit = call.pop("max_concurrency", None) or ensure_config().get("max_concurrency")
        chosen = await self.critics.for_call(*(named_critic() if named is None else (named, source)))
        callbacks, write, rng = callbacks_below(run_manager), stream_writer(), self._rng(len(messages))
        request = DecisionRequest(messages, {**self.bound, **call}, chosen, rng, callbacks)
        with at_most(limit), gated(self._gate):
            result = await self._traced_decision(request)
        write(result.record)
        if self.sink is not None:
            self.sink(result.record)
        message = self._with_summary(result.message, {"critic": chosen.name, **result.summary})
        # A stream shows the chunk and the whole message: they need the same id.
        message.id = None if run_manager is None else f"lc_run--{run_manager.run_id}"
        return message

    async def _traced_decision(self, request: DecisionRequest) -> DecisionResult:
        """Make a decision as a separate run in the trace; the requests are traced below it."""
        name, chosen, rng = f"{self.method}.decision", request.chosen, request.rng
        inputs = {**self._identifying_params, "critic": chosen.name}
        run = await request.callbacks.on_chain_start({}, inputs, name=name)
        below = run.get_child()
        try:
            seeded = nullcontext() if rng is None else use_rng(rng)
            bound = bounded(self.budget, self.prices, self, chosen.critic)
            with traced_work(name) as span, running_below(below), bound, seeded:
                connected = await self._connected(chosen)
                result = await self._decide(request._replace(chosen=connected, callbacks=below))
                record = {"type": name, "critic": chosen.name, "critic_from": chosen.source, **result.record}
                span.report(record)
        except BaseException as error:
            await run.on_chain_error(error)
            raise
        await run.on_chain_end(record)
        log(
            _log,
            logging.DEBUG,
            "decision.made",
            "%(method)s decided with the critic %(critic)s",
            method=name,
            critic=chosen.name,
        )
        return result._replace(record=record)

    async def _connected(self, chosen: ChosenCritic) -> ChosenCritic:
        """Connect the critic to its server. A failure is raised at once, or by each call if failures are tolerated."""
        try:
            await connect(chosen.critic)
        except CriticError as error:
            if self.settings.on_critic_error == "raise":
                raise
            return replace(chosen, critic=failing(chosen.critic, error))
        return chosen

    def _with_summary(self, message: AIMessage, summary: Record) -> AIMessage:
        """Add the summary; drop the id and the usage, which the requests below this model report."""
        metadata = {**message.response_metadata, self.method: summary}
        return message.model_copy(update={"id": None, "usage_metadata": None, "response_metadata": metadata})

    def _rng(self, n_messages: int) -> np.random.Generator | None:
        rng = particle_rng()
        return rng if rng is not None or self.seed is None else np.random.default_rng([self.seed, n_messages])

    def _resolve_model_profile(self) -> ModelProfile | None:
        return self.actor.profile

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        return super()._get_ls_params(stop=stop, **kwargs) | LangSmithParams(ls_provider="amc_agents")

    @override
    def get_token_ids(self, text: str) -> list[int]:
        return self.actor.get_token_ids(text)

    @override
    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Sequence[Any] | None = None) -> int:
        return self.actor.get_num_tokens_from_messages(messages, tools)


def _with_config(call: dict[str, Any], config: RunnableConfig | None) -> dict[str, Any]:
    """Add the critic and the limit of concurrency that the call's config names to its arguments."""
    named, source = named_critic(config)
    limit = (config or {}).get("max_concurrency")
    call = {**call, "max_concurrency": limit} if limit else call
    return call if named is None or "critic" in call else {**call, "critic": named, "critic_from": source}


MOST_KEPT = 100
"""Maximum number of decisions kept in the state, so that it does not grow with the conversation."""


def latest(kept: list[Record] | None, new: list[Record]) -> list[Record]:
    """Keep the newest decisions: the reducer of the state's channel."""
    return [*(kept or []), *new][-MOST_KEPT:]


class DecidingMiddleware(AgentMiddleware[Any, Any, Any]):
    """Answers each model call by a decision.

    Args:
        build: makes the deciding model from `actor`, `bound`, `sink` and `system_is_task`.
        keep_decisions: keep the records of decisions in the agent's private state.
    """

    channel: ClassVar[str]
    """Channel of the state for the records."""

    def __init__(self, build: Callable[..., DecidingModel], *, keep_decisions: bool) -> None:
        super().__init__()
        self._build = build
        self._keep = keep_decisions

    @override
    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        records: list[Record] = []
        return self._recorded(handler(self._deciding(request, records)), records)

    @override
    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        records: list[Record] = []
        return self._recorded(await handler(self._deciding(request, records)), records)

    def _deciding(self, request: ModelRequest[Any], records: list[Record]) -> ModelRequest[Any]:
        actor, bound = unbound(request.model)
        has_prompt = request.system_message is not None
        model = self._build(actor, bound=bound, sink=records.append, system_is_task=not has_prompt)
        return request.override(model=model)

    def _recorded(
        self, response: ModelResponse[Any], records: list[Record]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        if not records:
            log(
                _log,
                logging.WARNING,
                "decision.bypassed",
                "%(method)s decided nothing: a middleware after it answered, or replaced the model",
                method=type(self).__name__,
            )
        if not records or not self._keep:
            return response
        return ExtendedModelResponse(response, Command(update={self.channel: records}))


def deciding_node(model: DecidingModel, decisions: str | None, name: str) -> RunnableLambda[Any, Any]:
    """Build a node for a StateGraph with `messages`, sync and async: it adds the message that the model chooses.

    Args:
        model: decides. A leading system message of the state belongs to the task, as in everything that `amc` reads.
        decisions: channel of the state that receives `[record]` of each decision; None: no channel.
        name: name of the node.
    """
    wrapped = model.model_copy(update={"system_is_task": True})

    def update(message: AIMessage, records: list[Record]) -> dict[str, Any]:
        return {"messages": [message]} | ({} if decisions is None else {decisions: records})

    def call(state: Any) -> dict[str, Any]:
        records: list[Record] = []
        deciding = wrapped.model_copy(update={"sink": records.append})
        return update(deciding.invoke(as_mapping(state)["messages"]), records)

    async def acall(state: Any) -> dict[str, Any]:
        records: list[Record] = []
        deciding = wrapped.model_copy(update={"sink": records.append})
        return update(await deciding.ainvoke(as_mapping(state)["messages"]), records)

    return effect("read")(RunnableLambda(call, acall, name=name))
