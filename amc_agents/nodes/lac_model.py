"""LAC as a chat model: each answer is the choice of one decision (`amc_agents.methods.lac.decide`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from langchain_core.callbacks import AsyncCallbackManager, AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LangSmithParams, LanguageModelInput, ModelProfile
from langchain_core.messages import AIMessage, BaseMessage, convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig
from pydantic import ConfigDict, Field, SkipValidation

from amc_agents.critics.rescoring import TextScorer
from amc_agents.errors import ConfigurationError
from amc_agents.methods.imagination import ChatImagination
from amc_agents.methods.lac import Decision, Imagination, LacSettings, Rescorer, decide
from amc_agents.methods.reflection import Answers, ChatReflector
from amc_agents.methods.rescoring import ChatRescorer
from amc_agents.models.seeding import particle_rng, use_rng
from amc_agents.nodes.background import run_in_background
from amc_agents.nodes.chosen_critic import ChosenCritic, CriticChoice
from amc_agents.nodes.inner_calls import (
    callbacks_below,
    named_critic,
    running_below,
    stream_writer,
    world_model_answers,
)
from amc_agents.nodes.lac_actor import ChatActor, unbound
from amc_agents.nodes.lac_history import KEY, reflect, trajectory_of

Record = dict[str, Any]
"""A decision as plain values: `Decision.as_plain()`, the critic and who named it, the requests and tokens."""
Sink = Callable[[Record], None]
"""Takes the records of decisions as they are made."""


class _Made(NamedTuple):
    """A decision and what is told of it."""

    decision: Decision
    record: Record
    reflection: str


class ActorCriticModel(BaseChatModel):
    """A chat model whose answer is the choice among K candidates of another one. Made by `actor_critic_model`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    actor: SkipValidation[BaseChatModel]
    """Samples the candidates."""
    bound: dict[str, Any] = Field(default_factory=dict)
    """Arguments of every request to the actor."""
    settings: SkipValidation[LacSettings] = LacSettings()
    critics: SkipValidation[CriticChoice] = Field(repr=False)
    world_model: SkipValidation[BaseChatModel | Imagination | None] = Field(default=None, repr=False)
    """Imagines what comes after a candidate, and reflects; None: the actor does."""
    scorer: SkipValidation[TextScorer | None] = Field(default=None, repr=False)
    """Scores texts by the policy, for the priors that need it."""
    seed: int | None = Field(default=None, ge=0)
    """Fixes the decision at a given conversation, with models that draw from `amc_agents.models.seeding`. Inside a
    particle its own stream decides instead, so that siblings differ."""
    sink: SkipValidation[Sink | None] = Field(default=None, repr=False)
    """Is given the record of each decision, besides the stream and the trace."""
    system_is_task: bool = False
    """Whether a leading system message belongs to the task that the critic reads."""
    cache: Any = False
    """Decisions are not cached; the actor's own cache holds for its requests."""

    @property
    def _llm_type(self) -> str:
        return "actor-critic"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        settings = {
            name: getattr(self.settings, name) for name in ("k", "alpha", "prior", "greedy", "depth", "reflect")
        }
        return {"actor": self.model_name, "critic": self.critics.own.name, **settings}

    @property
    def model_name(self) -> str:
        """The actor's name: what LangChain tells a model's abilities by."""
        names = (getattr(self.actor, name, None) for name in ("model_name", "model", "model_id"))
        return next((name for name in names if isinstance(name, str) and name), type(self.actor).__name__)

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """Tools as the actor wants them bound: each candidate may call them, and the chosen one's calls are returned.

        So `with_structured_output` gives the choice among K structured answers, always by a tool call.
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

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        # Not the loop's own threads: all of them may be waiting for calls like this one.
        threads = ThreadPoolExecutor(self.settings.k + 1, thread_name_prefix="lac")
        try:
            work = self._answer(messages, run_manager, {**kwargs, "stop": stop}, threads)
            return run_in_background(work, n_workers=1)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return await self._answer(messages, run_manager, {**kwargs, "stop": stop}, None)

    async def _answer(
        self, messages: list[BaseMessage], run_manager: Any, call: dict[str, Any], threads: Executor | None
    ) -> ChatResult:
        named, source = call.pop("critic", None), call.pop("critic_from", "call")
        chosen = await self.critics.for_call(*(named_critic() if named is None else (named, source)))
        callbacks = callbacks_below(run_manager)
        write = stream_writer()
        run = await callbacks.on_chain_start(
            {}, {**self._identifying_params, "critic": chosen.name}, name="lac.decision"
        )
        rng = self._rng(len(messages))
        try:
            with running_below(run.get_child()), nullcontext() if rng is None else use_rng(rng):
                made = await self._decide(messages, chosen, {**self.bound, **call}, rng, run.get_child(), threads)
        except BaseException as error:
            await run.on_chain_error(error)
            raise
        await run.on_chain_end(made.record)
        write(made.record)
        if self.sink is not None:
            self.sink(made.record)
        return ChatResult(generations=[ChatGeneration(message=_chosen(made))])

    async def _decide(
        self,
        messages: list[BaseMessage],
        chosen: ChosenCritic,
        call: dict[str, Any],
        rng: np.random.Generator | None,
        callbacks: AsyncCallbackManager,
        threads: Executor | None,
    ) -> _Made:
        shown, reflection = messages, ""
        answers = world_model_answers(self._world, threads)
        if self.settings.reflect:
            reflector = ChatReflector(answers)
            shown, reflection = await reflect(messages, reflector, system_is_task=self.system_is_task)
        wants_likelihoods = self.settings.prior == "likelihood" and self.scorer is None
        actor = ChatActor(
            self.actor, shown, callbacks=callbacks, threads=threads, log_likelihoods=wants_likelihoods, **call
        )
        decision = await decide(
            trajectory_of(shown, system_is_task=self.system_is_task),
            actor,
            chosen.critic,
            self.settings,
            imagination=self._imagination(answers),
            rescorer=self._rescorer(actor, shown, call),
            rng=np.random.default_rng() if rng is None else rng,
        )
        decision = replace(
            decision, round_trips=decision.round_trips + bool(reflection), notes=(*actor.notes, *decision.notes)
        )
        return _Made(decision, _record(decision, actor, chosen, reflection), reflection)

    @property
    def _world(self) -> BaseChatModel:
        return self.world_model if isinstance(self.world_model, BaseChatModel) else self.actor

    def _imagination(self, answers: Answers) -> Imagination | None:
        if self.settings.depth == 0 or not self.settings.use_critic:
            return None
        if self.world_model is not None and not isinstance(self.world_model, BaseChatModel):
            return self.world_model
        return ChatImagination(answers, depth=self.settings.depth, reflect=self.settings.reflect)

    def _rescorer(self, actor: ChatActor, shown: list[BaseMessage], call: Mapping[str, Any]) -> Rescorer | None:
        if self.scorer is None or self.settings.prior == "frequency":
            return None
        if call.get("tools"):
            raise ConfigurationError(
                f"prior={self.settings.prior!r} scores turns as text, and this policy calls tools, which every chat "
                'template writes in a way of its own: use prior="frequency"'
            )
        dialogue: Any = convert_to_openai_messages(shown)
        return ChatRescorer(self.scorer, dialogue, temperature=actor.setting("temperature", 1.0))

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


def _with_critic(call: dict[str, Any], config: RunnableConfig | None) -> dict[str, Any]:
    """The arguments of a call, with the critic that its config names."""
    named, source = named_critic(config)
    return call if named is None or "critic" in call else {**call, "critic": named, "critic_from": source}


def _record(decision: Decision, actor: ChatActor, chosen: ChosenCritic, reflection: str) -> Record:
    used = {name: getattr(actor.usage, name) for name in ("calls", "input_tokens", "output_tokens", "cached_tokens")}
    said = {"reflection": reflection} if reflection else {}
    return {
        "type": "lac.decision",
        "critic": chosen.name,
        "critic_from": chosen.source,
        **decision.as_plain(),
        **said,
        "usage": {"policy": used},
    }


def _chosen(made: _Made) -> AIMessage:
    """The chosen message with an id of its own; nothing of the other candidates is in it."""
    message: AIMessage = made.decision.sample.payload
    told = ("critic", "prior", "alpha", "round_trips", "notes", "usage", "reflection")
    summary = {key: made.record[key] for key in told if key in made.record}
    summary |= {"candidates": len(made.decision.candidates), "samples": sum(one.n for one in made.decision.candidates)}
    metadata = {**message.response_metadata, KEY: summary}
    # Its usage is that of the requests below, which tracers and meters count there.
    return message.model_copy(update={"id": None, "usage_metadata": None, "response_metadata": metadata})
