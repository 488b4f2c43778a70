"""A chat model whose answers are decisions over another one's: what LAC's and PNLC's have in common.

Requests, events, traces, the critic of the call, and the way in by sync and by async; what is decided, and how, is said
by the method's own model.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from langchain_core.callbacks import AsyncCallbackManager, AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LangSmithParams, LanguageModelInput, ModelProfile
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig, RunnableLambda
from pydantic import ConfigDict, Field, SkipValidation

from amc_agents.concurrency.background import run_in_background
from amc_agents.concurrency.threads import DaemonThreads
from amc_agents.critics.adapting import connect, failing
from amc_agents.errors import CriticError
from amc_agents.models.seeding import particle_rng, use_rng
from amc_agents.runtime.answer_chunk import as_chunk
from amc_agents.runtime.chosen_critic import ChosenCritic, CriticChoice
from amc_agents.runtime.contract import as_mapping
from amc_agents.runtime.effects import effect
from amc_agents.runtime.inner_calls import callbacks_below, named_critic, running_below, stream_writer
from amc_agents.runtime.sampling_actor import unbound
from amc_agents.settings import OnCriticError
from amc_agents.usage import Usage

Record = dict[str, Any]
"""A decision as plain values: what was decided and why, the critic and who named it, the requests and tokens."""
Sink = Callable[[Record], None]
"""Takes the records of decisions as they are made."""


class Asked(NamedTuple):
    """What a decision is asked for, and how its requests are made."""

    messages: list[BaseMessage]
    """The conversation."""
    call: dict[str, Any]
    """Arguments of every request to the actor."""
    chosen: ChosenCritic
    """The critic."""
    rng: np.random.Generator | None
    """The decision's own luck; None: nothing fixes it."""
    callbacks: AsyncCallbackManager
    """Who is told of the requests."""
    threads: Executor | None
    """Where sync clients are used; None for the async ones."""


class Made(NamedTuple):
    """A decision that was made."""

    message: AIMessage
    """The chosen message as the actor wrote it."""
    record: Record
    """All that is told of the decision."""
    summary: Record
    """What the message itself carries of it."""


class DecidingModel(BaseChatModel):
    """A chat model whose answer is decided on by a method, over the answers of another model."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    method: ClassVar[str]
    """Names the events, and the key of `response_metadata` that sums a decision up."""

    actor: SkipValidation[BaseChatModel]
    """The policy."""
    bound: dict[str, Any] = Field(default_factory=dict)
    """Arguments of every request to the actor."""
    critics: SkipValidation[CriticChoice] = Field(repr=False)
    seed: int | None = Field(default=None, ge=0)
    """Fixes the decision at a given conversation, with models that draw from `amc_agents.models.seeding`. Inside a
    particle its own stream decides instead, so that siblings differ."""
    sink: SkipValidation[Sink | None] = Field(default=None, repr=False)
    """Is given the record of each decision, besides the stream and the trace."""
    system_is_task: bool = False
    """Whether a leading system message belongs to the task that the critic reads."""
    cache: Any = False
    """Decisions are not cached; the actor's own cache holds for its requests."""

    @abstractmethod
    async def _decide(self, asked: Asked) -> Made:
        """One decision."""

    @property
    @abstractmethod
    def _told_settings(self) -> dict[str, Any]:
        """The settings that a trace names."""

    @property
    @abstractmethod
    def _on_critic_error(self) -> OnCriticError:
        """What to do where the critic fails."""

    @property
    @abstractmethod
    def _n_threads(self) -> int:
        """Requests that are under way at the same time at most."""

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"actor": self.model_name, "critic": self.critics.own.name, **self._told_settings}

    @property
    def model_name(self) -> str:
        """The actor's name: what LangChain tells a model's abilities by."""
        names = (getattr(self.actor, name, None) for name in ("model_name", "model", "model_id"))
        return next((name for name in names if isinstance(name, str) and name), type(self.actor).__name__)

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """Tools as the actor wants them bound: whatever it drafts may call them, and the chosen turn's calls come back.

        So `with_structured_output` gives a structured answer that was decided on, always by a tool call.
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
        """One decision. `critic=` names another critic for this call, as `configurable` and a graph's context do."""
        return super().invoke(input, config, stop=stop, **_with_critic(kwargs, config))

    async def ainvoke(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AIMessage:
        """One decision, as `invoke`."""
        return await super().ainvoke(input, config, stop=stop, **_with_critic(kwargs, config))

    def stream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> Iterator[AIMessageChunk]:
        """One decision, as one chunk: until it is made there is nothing to show."""
        yield as_chunk(self.invoke(input, config, stop=stop, **kwargs))

    async def astream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[AIMessageChunk]:
        """One decision, as one chunk."""
        yield as_chunk(await self.ainvoke(input, config, stop=stop, **kwargs))

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        # Not the loop's own threads: all of them may be waiting for calls like this one.
        threads = DaemonThreads(self._n_threads, self.method)
        try:
            work = self._answer(messages, run_manager, {**kwargs, "stop": stop}, threads)
            message = run_in_background(work, n_workers=1)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
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
        message = await self._answer(messages, run_manager, {**kwargs, "stop": stop}, None)
        if run_manager is not None and self._streams:
            await run_manager.on_llm_new_token(message.text, chunk=ChatGenerationChunk(message=as_chunk(message)))
        return ChatResult(generations=[ChatGeneration(message=message)])

    @property
    def _streams(self) -> bool:
        """Callbacks hear the answer as a chunk, such as those of `stream_mode="messages"`."""
        return self.disable_streaming is not True

    async def _answer(
        self, messages: list[BaseMessage], run_manager: Any, call: dict[str, Any], threads: Executor | None
    ) -> AIMessage:
        named, source = call.pop("critic", None), call.pop("critic_from", "call")
        chosen = await self.critics.for_call(*(named_critic() if named is None else (named, source)))
        callbacks = callbacks_below(run_manager)
        write = stream_writer()
        told = {**self._identifying_params, "critic": chosen.name}
        run = await callbacks.on_chain_start({}, told, name=f"{self.method}.decision")
        rng = self._rng(len(messages))
        asked = Asked(messages, {**self.bound, **call}, chosen, rng, run.get_child(), threads)
        try:
            with running_below(run.get_child()), nullcontext() if rng is None else use_rng(rng):
                made = await self._decide(asked._replace(chosen=await self._connected(chosen)))
        except BaseException as error:
            await run.on_chain_error(error)
            raise
        record = {
            "type": f"{self.method}.decision",
            "critic": chosen.name,
            "critic_from": chosen.source,
            **made.record,
        }
        await run.on_chain_end(record)
        write(record)
        if self.sink is not None:
            self.sink(record)
        message = self._summed_up(made.message, {"critic": chosen.name, **made.summary})
        # The chunk and the whole are one message to whoever streams.
        message.id = None if run_manager is None else f"lc_run--{run_manager.run_id}"
        return message

    async def _connected(self, chosen: ChosenCritic) -> ChosenCritic:
        """The critic, which has found its server; where it could not, and that is allowed, one that says so again."""
        try:
            await connect(chosen.critic)
        except CriticError as error:
            if self._on_critic_error == "raise":
                raise
            return replace(chosen, critic=failing(chosen.critic, error))
        return chosen

    def _summed_up(self, message: AIMessage, summary: Record) -> AIMessage:
        """The message without its id. Its usage is that of the requests below, where it is counted."""
        metadata = {**message.response_metadata, self.method: summary}
        return message.model_copy(update={"id": None, "usage_metadata": None, "response_metadata": metadata})

    def _rng(self, n_messages: int) -> np.random.Generator | None:
        own = particle_rng()
        return own if own is not None or self.seed is None else np.random.default_rng([self.seed, n_messages])

    def _resolve_model_profile(self) -> ModelProfile | None:
        return self.actor.profile

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        return super()._get_ls_params(stop=stop, **kwargs) | LangSmithParams(ls_provider="amc_agents")

    def get_token_ids(self, text: str) -> list[int]:
        """As the actor counts."""
        return self.actor.get_token_ids(text)

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Sequence[Any] | None = None) -> int:
        """As the actor counts."""
        return self.actor.get_num_tokens_from_messages(messages, tools)


def deciding_node(model: DecidingModel, decisions: str | None, name: str) -> RunnableLambda[Any, Any]:
    """A node for a StateGraph with `messages`, sync and async: it adds the message that a model decides on.

    Args:
        model: decides. A system message is part of the state here, as all that `amc` reads.
        decisions: a channel of the state that is given `[record]` of each decision; None: none is.
        name: the node's.
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


def plain(usage: Usage) -> dict[str, int]:
    """A usage as a record has it."""
    return {name: getattr(usage, name) for name in ("calls", "input_tokens", "output_tokens", "cached_tokens")}


def _with_critic(call: dict[str, Any], config: RunnableConfig | None) -> dict[str, Any]:
    """The arguments of a call, with the critic that its config names."""
    named, source = named_critic(config)
    return call if named is None or "critic" in call else {**call, "critic": named, "critic_from": source}
