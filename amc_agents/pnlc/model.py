"""PNLC as a chat model, as a node of a graph, and as middleware of an agent.

Each answer is the outcome of a decision (`amc_agents.pnlc.decision.decide`). The requests belong to an unfinished
decision: they are traced, but not streamed to the user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, NotRequired, Unpack

from langchain.agents.middleware import AgentState
from langchain.agents.middleware.types import PrivateStateAttr
from langchain_core.callbacks import Callbacks
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable, RunnableLambda
from pydantic import Field, SkipValidation

from amc_agents.config import configured
from amc_agents.critics.uses import NoOdds, for_lac, for_pnlc
from amc_agents.decisions import Sample
from amc_agents.errors import ConfigurationError
from amc_agents.messages import split_turn, trajectory_of, turn_of
from amc_agents.pnlc.decision import decide
from amc_agents.pnlc.prompts import ChatGoalProposer, PnlcPrompts
from amc_agents.pnlc.types import Basis, PnlcDecision, PnlcSettings, Proposer
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
from amc_agents.runtime.inner_calls import ChatActor, role_answers, unbound
from amc_agents.settings import OnCriticError
from amc_agents.usage import Usage, counting


class PnlcOptions(DecidingOptions, total=False):
    """Options of `critique_refine_model`, `critique_refine_node` and `CritiqueRefine`.

    The first eight are the fields of `PnlcSettings`, which documents them and has their defaults. `on_critic_error`
    comes from the configuration file if it is left out.
    """

    n_positive: int
    n_negative: int
    m: int
    refine: bool
    k: int
    critique: Basis
    returns: tuple[float, float]
    on_critic_error: OnCriticError
    proposer: BaseChatModel | Proposer | None
    """Proposes goals. Default: the policy."""
    prompts: PnlcPrompts
    """Prompts of the language models: task, style of goals, examples, templates. Default: the library's."""


def critique_refine_model(
    model: BaseChatModel | Runnable[Any, AIMessage], critic: Any = None, **options: Unpack[PnlcOptions]
) -> CritiqueRefineModel:
    """Build a chat model that reconsiders each answer of `model`: goals, critique, perhaps a better thought (PNLC).

    The answer is the final turn's message, with a new id. `response_metadata["pnlc"]` summarises the decision.
    `usage_metadata` is left to the requests, which tracers see below this model. The whole record, thoughts and goals
    included, goes to LangGraph's custom stream as `{"type": "pnlc.decision", ...}` and into the trace.

    Args:
        model: the policy: a chat model, or a chat model with bound arguments.
        critic: predicts how likely goals are reached: a string (`goal:...`) or an object. If left out, or named for a
            call: as in `amc`.
        **options: see `PnlcOptions`.

    Raises:
        ConfigurationError: an option is invalid, or the critic does not fit.
    """
    actor, bound = unbound(model)
    return model_builder(critic, options)(actor, bound=bound)


def model_builder(critic: Any, options: PnlcOptions) -> Callable[..., CritiqueRefineModel]:
    """Check the options and read the critic, once for any number of actors.

    Returns:
        A function of the actor and further fields of `CritiqueRefineModel`.

    Raises:
        ConfigurationError: an option is invalid, or the critic does not fit.
    """
    given: dict[str, Any] = dict(options)
    kept = {name: given.pop(name, None) for name in ("proposer", "seed", "budget")}
    prompts = given.pop("prompts", None) or PnlcPrompts()
    offered, config = given.pop("critics", None), configured(given.pop("config", None))
    kept["prices"] = config.price_list()
    if config.on_critic_error is not None:
        given.setdefault("on_critic_error", config.on_critic_error)
    settings = PnlcSettings(**given)

    def fit(critic: Any) -> Any:
        return _fitting(critic, settings)

    critics = CriticChoice(critic if settings.needs_critic else "uniform", config, fit, offered)

    def build(actor: BaseChatModel, **fields: Any) -> CritiqueRefineModel:
        return CritiqueRefineModel(actor=actor, settings=settings, critics=critics, prompts=prompts, **kept, **fields)

    return build


class CritiqueRefineModel(DecidingModel):
    """A chat model that reconsiders its answers with a critic's help. Made by `critique_refine_model`."""

    method: ClassVar[str] = "pnlc"

    settings: SkipValidation[PnlcSettings] = PnlcSettings()
    proposer: SkipValidation[BaseChatModel | Proposer | None] = Field(default=None, repr=False)
    """Proposes goals; None: the policy does."""
    prompts: SkipValidation[PnlcPrompts] = Field(default_factory=PnlcPrompts, repr=False)

    @property
    def _llm_type(self) -> str:
        return "critique-refine"

    @property
    def _traced_settings(self) -> dict[str, Any]:
        names = ("critique", "refine", "m" if self.settings.refine else "k", "n_positive", "n_negative")
        return {name: getattr(self.settings, name) for name in names}

    async def _decide(self, request: DecisionRequest) -> DecisionResult:
        prompts = self._prompts_for(request)
        thinker = ChatThinker(
            self.actor,
            request.messages,
            prompts,
            system_is_task=self.system_is_task,
            callbacks=request.callbacks,
            **request.call,
        )
        # The meter counts the other roles; the thinker counts the policy.
        with counting() as meter:
            decision = await decide(
                trajectory_of(request.messages, system_is_task=self.system_is_task),
                thinker,
                self._proposer(prompts, request),
                request.chosen.critic,
                self.settings,
                prompts=prompts,
            )
        decision = replace(decision, notes=(*dict.fromkeys(thinker.notes), *decision.notes))
        return _result(decision, {"policy": thinker.usage, **meter.read()})

    def _prompts_for(self, request: DecisionRequest) -> PnlcPrompts:
        """Add the agent's tools to the prompts, which are sent without bound tools."""
        parts = (self.prompts.task, described(request.call.get("tools") or ()))
        return replace(self.prompts, task="\n\n".join(part for part in parts if part))

    def _proposer(self, prompts: PnlcPrompts, request: DecisionRequest) -> Proposer:
        if self.proposer is not None and not isinstance(self.proposer, BaseChatModel):
            return self.proposer
        model = self.actor if self.proposer is None else self.proposer
        return ChatGoalProposer(role_answers(model, "world model", run_name="goals"), prompts)


def _fitting(critic: Any, settings: PnlcSettings) -> Any:
    """Adapt the critic to the settings. Raises `ConfigurationError` if it does not fit."""
    if not settings.needs_critic:
        return critic
    if settings.critique == "goals":
        return for_pnlc(critic)
    odds = for_lac(critic, returns=settings.returns)
    if isinstance(odds, NoOdds):
        raise ConfigurationError(
            'critique="value" shows the model a likelihood of success, and `uniform` has none: name another critic'
        )
    return odds


def _result(decision: PnlcDecision, usage: dict[str, Usage]) -> DecisionResult:
    """Return the final message, the record and the summary; the message contains nothing of discarded thoughts."""
    record: Record = {**decision.as_plain(), "usage": {role: used.as_plain() for role, used in usage.items()}}
    summary = {name: record[name] for name in ("round_trips", "notes", "usage", "chosen")}
    return DecisionResult(decision.sample.payload, record, {**summary, "thoughts": len(decision.thoughts)})


class ChatThinker:
    """A chat model at the end of a conversation (`amc_agents.pnlc.types.Thinker`).

    Args:
        model: the policy.
        messages: the conversation.
        prompts: the prompt templates.
        system_is_task: a leading system message is part of the task, which the prompts contain already.
        callbacks: callbacks of the requests.
        **call: further arguments of the requests for turns, such as `tools` and `stop`.
    """

    def __init__(
        self,
        model: BaseChatModel,
        messages: Sequence[BaseMessage],
        prompts: PnlcPrompts,
        *,
        system_is_task: bool = False,
        callbacks: Callbacks = None,
        **call: Any,
    ) -> None:
        self._model, self._messages, self._prompts, self._call = model, list(messages), prompts, call
        self._callbacks = callbacks
        has_prompt = len(self._messages) > 1 and isinstance(self._messages[0], SystemMessage) and not system_is_task
        self._prompt = self._messages[: int(has_prompt)]
        self.usage = Usage()
        """Usage of its requests."""
        self.notes: list[str] = []
        """Remarks for the reader of the decision."""

    async def sample(self, k: int) -> list[Sample]:
        """Return `k` independent turns in one round trip."""
        return await self._sample(k, self._messages, "thought", self._call)

    async def act(self, thought: str) -> Sample:
        """Return the turn that follows from a thought; its message contains the thought."""
        messages = _with_text(self._messages, self._prompts.to_act(thought))
        turns = await self._sample(1, messages, "action", self._call)
        return replace(turns[0], payload=carrying(turns[0].payload, thought)) if turns else Sample(thought, "")

    async def answer(self, prompt: str) -> str:
        """Answer a question about the decision as text, without tools."""
        call = {name: value for name, value in self._call.items() if name not in _OF_TURNS}
        turns = await self._sample(1, [*self._prompt, HumanMessage(prompt)], "reflection", call)
        return turns[0].payload.text if turns else ""

    async def _sample(
        self, k: int, messages: Sequence[BaseMessage], run_name: str, call: Mapping[str, Any]
    ) -> list[Sample]:
        actor = ChatActor(self._model, messages, run_name=run_name, callbacks=self._callbacks, **call)
        samples = await actor.sample(k)
        self.usage += actor.usage
        self.notes += actor.notes
        return samples


def carrying(message: AIMessage, thought: str) -> AIMessage:
    """Add the thought to a message without a thought, where the history and critics read it."""
    if turn_of(message)[0] or not thought:
        return message
    if message.tool_calls:
        if isinstance(message.content, str):
            return message.model_copy(update={"content": thought})
        return message.model_copy(update={"content": [{"type": "text", "text": thought}, *message.content]})
    # A text without `Action:` may be the agent's answer to its user, who should not see the thought.
    if isinstance(message.content, str) and "Action:" in message.content:
        text = f"Thought: {thought}\nAction: {split_turn(message.text)[1]}"
        return message.model_copy(update={"content": text})
    return message


def described(tools: Sequence[Any]) -> str:
    """Describe tools as text, for prompts without bound tools; empty if there are no tools."""
    lines = []
    for tool in tools:
        facts = tool.get("function", tool) if isinstance(tool, Mapping) else {}
        if facts.get("name"):
            lines.append(f"- {facts['name']}: {facts.get('description', '')}".rstrip(": "))
    return "\n".join(("The agent's tools:", *lines)) if lines else ""


def _with_text(messages: Sequence[BaseMessage], text: str) -> list[BaseMessage]:
    """Append a user message, or extend the last message if it is the user's.

    Many chat templates refuse two user messages in a row.
    """
    last = messages[-1] if messages else None
    if not isinstance(last, HumanMessage):
        return [*messages, HumanMessage(text)]
    if isinstance(last.content, str):
        content: Any = f"{last.content}\n\n{text}"
    else:
        content = [*last.content, {"type": "text", "text": text}]
    return [*messages[:-1], last.model_copy(update={"content": content})]


_OF_TURNS = {
    "tools", "tool_choice", "functions", "function_call", "parallel_tool_calls", "strict", "response_format",
    "ls_structured_output_format", "stop", "n", "logprobs", "top_logprobs",
}  # fmt: skip
"""Arguments that only apply to the agent's turns."""


def critique_refine_node(
    model: BaseChatModel | Runnable[Any, AIMessage],
    critic: Any = None,
    *,
    decisions: str | None = None,
    **options: Unpack[PnlcOptions],
) -> RunnableLambda[Any, Any]:
    """Build a node for a StateGraph with `messages`: it adds the message of the turn that PNLC settles on.

    Args:
        model: as in `critique_refine_model`.
        critic: as in `critique_refine_model`.
        decisions: channel of the state that receives `[record]` of each decision. Default: no channel.
        **options: see `PnlcOptions`.

    Raises:
        ConfigurationError: as `critique_refine_model`.
    """
    return deciding_node(critique_refine_model(model, critic, **options), decisions, "critique_refine")


class CritiqueRefineState(AgentState[Any]):
    """The state of the middleware."""

    pnlc_decisions: NotRequired[Annotated[list[Record], PrivateStateAttr, latest]]
    """Private: not in the agent's input or output. As every channel, it is in the stream of whole states and in
    `get_state`."""


class CritiqueRefine(DecidingMiddleware):
    """Reconsiders each answer of the model: outcomes, how likely they are, perhaps a better thought (PNLC).

        agent = create_agent(model, tools, middleware=[CritiqueRefine("goal:my-goals")])

    No tool is called before the decision, so it suits agents whose tools cannot be undone.

    The thought is judged: the text before a tool call, `Thought: ...` of an agent that acts in text, else the reasoning
    of a reasoning model, else the action.

    Put it last among the middleware that wraps model calls: the changes that the others make to the request (tools,
    messages, the model itself) then apply to every draft, and they are called once per decision. A middleware after it
    that replaces the model also removes the decision; this is logged.

    Args:
        critic: predicts how likely goals are reached: a string (`goal:...`) or an object. If left out, or named for a
            call: as in `amc`.
        keep_decisions: keep the records of decisions in the agent's private state `pnlc_decisions`. The custom stream
            and the trace contain them in any case.
        **options: see `amc_agents.pnlc.model.PnlcOptions`.

    Raises:
        ConfigurationError: an option is invalid, or the critic does not fit.
    """

    state_schema = CritiqueRefineState
    channel: ClassVar[str] = "pnlc_decisions"

    def __init__(self, critic: Any = None, *, keep_decisions: bool = True, **options: Unpack[PnlcOptions]) -> None:
        super().__init__(model_builder(critic, options), keep_decisions=keep_decisions)
