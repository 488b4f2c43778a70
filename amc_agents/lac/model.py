"""LAC as a chat model, as a node of a graph, and as middleware of an agent.

Each answer is the choice of a decision (`amc_agents.lac.decision.decide`). A reflection is written before the decision
that follows the step. It is stored in the `response_metadata` of the message chosen then, and shown to actor and critic
as the last line of the world's answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, NotRequired, Unpack

import numpy as np
from langchain.agents.middleware import AgentState
from langchain.agents.middleware.types import PrivateStateAttr
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, convert_to_openai_messages
from langchain_core.runnables import Runnable, RunnableLambda
from pydantic import Field, SkipValidation

from amc_agents.config import configured
from amc_agents.critics.render import turn
from amc_agents.critics.uses import for_lac
from amc_agents.decisions import Answers
from amc_agents.errors import ConfigurationError, CriticError
from amc_agents.lac.decision import decide, decide_among
from amc_agents.lac.imagination import ChatImagination, ChatReflector, with_reflection
from amc_agents.lac.text_scoring import ChatRescorer, TextScorer
from amc_agents.lac.types import Decision, Imagination, LacSettings, Prior, Rescorer
from amc_agents.messages import trajectory_of
from amc_agents.quoting import quoted
from amc_agents.runtime.calls import CriticChoice
from amc_agents.runtime.deciding import (
    DecidingMiddleware,
    DecidingModel,
    DecidingOptions,
    DecisionRequest,
    DecisionResult,
    Record,
    deciding_node,
    latest,
)
from amc_agents.runtime.inner_calls import ChatActor, require_temperature, role_answers, unbound
from amc_agents.settings import OnCriticError
from amc_agents.types import Step

Listed = Sequence[str] | Callable[[Sequence[BaseMessage]], Sequence[str]]
"""All possible actions, or a function that lists them for a conversation."""


class LacOptions(DecidingOptions, total=False):
    """Options of `actor_critic_model`, `actor_critic_node` and `ActorCritic`.

    The first ten are the fields of `LacSettings`, which documents them and has their defaults. `on_critic_error` comes
    from the configuration file if it is left out.
    """

    k: int
    alpha: float
    prior: Prior
    greedy: bool
    sample: bool
    returns: tuple[float, float]
    use_critic: bool
    depth: int
    reflect: bool
    on_critic_error: OnCriticError
    world_model: BaseChatModel | Imagination | None
    """Imagines and reflects. Default: the policy."""
    scorer: TextScorer | None
    """Scores texts under the policy: required by prior="thoughts" and by `actions`."""
    actions: Listed | None
    """All possible actions, or a function that lists them for a conversation. They become the candidates, under the
    exact prior: given K sampled thoughts with prior="thoughts", without a thought with prior="likelihood"."""


def actor_critic_model(
    model: BaseChatModel | Runnable[Any, AIMessage], critic: Any = None, **options: Unpack[LacOptions]
) -> ActorCriticModel:
    """Build a chat model that samples K answers of `model` and returns the choice of prior and critic (LAC, eq. 4-6).

    The answer is the chosen message as it was sampled, with a new id. `response_metadata["lac"]` summarises the
    decision. `usage_metadata` is left to the K requests, which tracers see below this model. The whole record,
    candidates included, goes to LangGraph's custom stream as `{"type": "lac.decision", ...}` and into the trace.

    Args:
        model: the policy: a chat model, or a chat model with bound arguments.
        critic: judges the candidates: a string or an object. If left out, or named for a call: as in `amc`.
        **options: see `LacOptions`.

    Raises:
        ConfigurationError: an option is invalid, the critic does not fit, or `model` lacks a required ability.
    """
    actor, bound = unbound(model)
    return model_builder(critic, options)(actor, bound=bound)


def model_builder(critic: Any, options: LacOptions) -> Callable[..., ActorCriticModel]:
    """Check the options and read the critic, once for any number of actors.

    Returns:
        A function of the actor and further fields of `ActorCriticModel`.

    Raises:
        ConfigurationError: an option is invalid, or the critic does not fit.
    """
    given: dict[str, Any] = dict(options)
    kept = {name: given.pop(name, None) for name in ("world_model", "scorer", "actions", "seed", "budget")}
    offered, config = given.pop("critics", None), configured(given.pop("config", None))
    kept["prices"] = config.price_list()
    if config.on_critic_error is not None:
        given.setdefault("on_critic_error", config.on_critic_error)
    settings = LacSettings(**given)
    if kept["actions"] is not None and (kept["scorer"] is None or settings.prior == "frequency"):
        raise ConfigurationError(
            'actions= needs scorer=, which scores each action, and prior="thoughts" for a policy that thinks before '
            'it acts, else prior="likelihood"'
        )

    def fit(critic: Any) -> Any:
        return for_lac(critic, returns=settings.returns)

    critics = CriticChoice(critic if settings.use_critic else "uniform", config, fit, offered)

    def build(actor: BaseChatModel, **fields: Any) -> ActorCriticModel:
        if settings.greedy:
            require_temperature(actor)
        return ActorCriticModel(actor=actor, settings=settings, critics=critics, **kept, **fields)

    return build


class ActorCriticModel(DecidingModel):
    """A chat model whose answer is chosen among K candidates of another model. Made by `actor_critic_model`."""

    method: ClassVar[str] = "lac"

    settings: SkipValidation[LacSettings] = LacSettings()
    world_model: SkipValidation[BaseChatModel | Imagination | None] = Field(default=None, repr=False)
    """Imagines the consequences of candidates, and reflects; None: the actor does."""
    scorer: SkipValidation[TextScorer | None] = Field(default=None, repr=False)
    """Scores texts under the policy, for the priors that need it."""
    actions: SkipValidation[Listed | None] = None
    """All possible actions, if the world lists them."""

    @property
    def _llm_type(self) -> str:
        return "actor-critic"

    @property
    def _traced_settings(self) -> dict[str, Any]:
        return {name: getattr(self.settings, name) for name in ("k", "alpha", "prior", "greedy", "depth", "reflect")}

    async def _decide(self, request: DecisionRequest) -> DecisionResult:
        answers = role_answers(self._world, "world model")
        shown, reflection, notes = await self._reflected(request.messages, answers)
        actor = ChatActor(
            self.actor,
            shown,
            callbacks=request.callbacks,
            log_likelihoods=self.settings.prior == "likelihood" and self.scorer is None,
            **request.call,
        )
        decision = await self._decision(request, shown, actor, self._imagination(answers))
        decision = replace(
            decision, round_trips=decision.round_trips + bool(reflection), notes=(*notes, *actor.notes, *decision.notes)
        )
        return _result(decision, actor, reflection)

    async def _decision(
        self, request: DecisionRequest, shown: list[BaseMessage], actor: ChatActor, imagination: Imagination | None
    ) -> Decision:
        trajectory = trajectory_of(shown, system_is_task=self.system_is_task)
        rescorer = self._rescorer(actor, shown, request.call)
        critic, settings = request.chosen.critic, self.settings
        rng = np.random.default_rng() if request.rng is None else request.rng
        if self.actions is None or rescorer is None:
            return await decide(
                trajectory, actor, critic, settings, imagination=imagination, rescorer=rescorer, rng=rng
            )
        listed = self.actions(shown) if callable(self.actions) else self.actions
        thinking = actor if settings.prior == "thoughts" else None
        return await decide_among(
            trajectory, listed, rescorer, critic, settings, actor=thinking, imagination=imagination, rng=rng
        )

    async def _reflected(
        self, messages: list[BaseMessage], answers: Answers
    ) -> tuple[list[BaseMessage], str, tuple[str, ...]]:
        """Return the conversation with its reflections, the newest reflection, and notes."""
        if not self.settings.reflect:
            return messages, "", ()
        try:
            return *await reflect(messages, ChatReflector(answers), system_is_task=self.system_is_task), ()
        except CriticError as error:
            if self.settings.on_critic_error == "raise":
                raise
            return with_past_reflections(messages), "", (f"the newest step has no reflection: {error}",)

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
                f"prior={quoted(self.settings.prior)} scores turns as text, and this policy calls tools, which each "
                'chat template writes differently: use prior="frequency"'
            )
        dialogue: Any = convert_to_openai_messages(shown)
        return ChatRescorer(self.scorer, dialogue, temperature=actor.setting("temperature", 1.0))


def _result(decision: Decision, actor: ChatActor, reflection: str) -> DecisionResult:
    """Return the chosen message, the record and the summary; the message contains nothing of the other candidates."""
    record: Record = {**decision.as_plain(), "usage": {"policy": actor.usage.as_plain()}}
    if reflection:
        record["reflection"] = reflection
    names = ("prior", "alpha", "round_trips", "notes", "usage", "reflection")
    summary = {name: record[name] for name in names if name in record}
    summary["candidates"] = len(decision.candidates)
    summary["samples"] = sum(candidate.n for candidate in decision.candidates)
    chosen = decision.sample
    # A listed action that was not sampled is written as the policy would have written it.
    unsampled = AIMessage(turn(Step(chosen.action, thought=chosen.thought)))
    return DecisionResult(chosen.payload or unsampled, record, summary)


KEY = "lac"
"""Key of `response_metadata` for the summary of a decision."""


def with_past_reflections(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Append each stored reflection to the message that it is about."""
    shown = list(messages)
    for i, message in enumerate(messages[1:], start=1):
        reflection = message.response_metadata.get(KEY, {}).get("reflection")
        if reflection and not isinstance(shown[i - 1], AIMessage):
            shown[i - 1] = _reflected(shown[i - 1], reflection)
    return shown


async def reflect(
    messages: Sequence[BaseMessage], reflector: ChatReflector, *, system_is_task: bool
) -> tuple[list[BaseMessage], str]:
    """Return the conversation with all reflections, and the new one on its newest step.

    The new reflection is empty if the newest message is the model's own.

    Raises:
        CriticError: the model failed.
    """
    shown = with_past_reflections(messages)
    if isinstance(shown[-1], AIMessage):
        return shown, ""
    (reflection,) = await reflector.reflections([trajectory_of(shown, system_is_task=system_is_task)])
    return ([*shown[:-1], _reflected(shown[-1], reflection)] if reflection else shown), reflection


def _reflected(message: BaseMessage, reflection: str) -> BaseMessage:
    content = message.content
    if isinstance(content, str):
        return message.model_copy(update={"content": with_reflection(content, reflection)})
    block = {"type": "text", "text": with_reflection("\n", reflection)}
    return message.model_copy(update={"content": [*content, block]})


def actor_critic_node(
    model: BaseChatModel | Runnable[Any, AIMessage],
    critic: Any = None,
    *,
    decisions: str | None = None,
    **options: Unpack[LacOptions],
) -> RunnableLambda[Any, Any]:
    """Build a node for a StateGraph with `messages`: it adds the message that LAC chooses.

    Args:
        model: as in `actor_critic_model`.
        critic: as in `actor_critic_model`.
        decisions: channel of the state that receives `[record]` of each decision. Default: no channel.
        **options: see `LacOptions`.

    Raises:
        ConfigurationError: as `actor_critic_model`.
    """
    return deciding_node(actor_critic_model(model, critic, **options), decisions, "actor_critic")


class ActorCriticState(AgentState[Any]):
    """The state of the middleware."""

    lac_decisions: NotRequired[Annotated[list[Record], PrivateStateAttr, latest]]
    """Private: not in the agent's input or output. As every channel, it is in the stream of whole states and in
    `get_state`."""


class ActorCritic(DecidingMiddleware):
    """Samples K candidates for each answer of the model; prior and critic choose (LAC).

        agent = create_agent(model, tools, middleware=[ActorCritic("verdict:http://127.0.0.1:8000?model=critic")])

    Put it last among the middleware that wraps model calls: the changes that the others make to the request (tools,
    messages, the model itself) then apply to every candidate, and they are called once per decision. A middleware after
    it that replaces the model also removes the decision; this is logged.

    Tools are bound as the model requires, and a candidate's calls are its action. Both strategies of structured output
    work: the candidates are whole answers, and the chosen answer is parsed.

    Args:
        critic: judges the candidates: a string or an object. If left out, or named for a call: as in `amc`.
        keep_decisions: keep the records of decisions in the agent's private state `lac_decisions`. The custom stream
            and the trace contain them in any case.
        **options: see `amc_agents.lac.model.LacOptions`.

    Raises:
        ConfigurationError: an option is invalid, or the critic does not fit.
    """

    state_schema = ActorCriticState
    channel: ClassVar[str] = "lac_decisions"

    def __init__(self, critic: Any = None, *, keep_decisions: bool = True, **options: Unpack[LacOptions]) -> None:
        super().__init__(model_builder(critic, options), keep_decisions=keep_decisions)
