"""Middlewares of PSRL and IDS for LangChain agents: each run of the agent is an episode."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Annotated, Any, ClassVar, NotRequired, Unpack

from langchain.agents.middleware import AgentMiddleware, AgentState
from langchain.agents.middleware.types import ModelRequest, ModelResponse, PrivateStateAttr, ToolCallRequest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command
from typing_extensions import override

from amc_agents.psrl.explorers import (
    InformationDirectedExplorer,
    ListedActions,
    PosteriorSamplingExplorer,
    checked_prompt,
    hypothesis_prompt,
    with_system_text,
)
from amc_agents.psrl.ids import Estimator
from amc_agents.psrl.options import ExplorerOptions, Place, RoleModel, in_sync
from amc_agents.psrl.roles import Sampler
from amc_agents.runtime.budget_keeper import bounded
from amc_agents.runtime.deciding import Record

Answer = ModelResponse[Any] | AIMessage


class ExploringMiddleware(AgentMiddleware[Any, Any, Any]):
    """Begins an episode when the agent starts, records its steps, and updates the posterior from them."""

    channel: ClassVar[str]
    """State key of the episode."""

    @property
    @abstractmethod
    def explorer(self) -> PosteriorSamplingExplorer | InformationDirectedExplorer:
        """The method's explorer."""

    @override
    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
        return in_sync(runtime, lambda place: self._start(state, place))

    @override
    async def abefore_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
        return await self._start(state, Place(runtime))

    @override
    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        return in_sync(runtime, lambda place: self._observe(state, place))

    @override
    async def abefore_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        return await self._observe(state, Place(runtime))

    @override
    def after_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        return in_sync(runtime, lambda place: self._end(state, place))

    @override
    async def aafter_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        return await self._end(state, Place(runtime))

    @override
    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        with self._failures_noted(request.state):
            return handler(request)

    @override
    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        with self._failures_noted(request.state):
            return await handler(request)

    async def _start(self, state: Any, place: Place) -> dict[str, Any]:
        with bounded(self.explorer.budget, None, self):
            return {self.channel: await self.explorer.start(state.get(self.channel), state["messages"], place)}

    async def _observe(self, state: Any, place: Place) -> dict[str, Any] | None:
        episode = state[self.channel]
        observed = await self.explorer.observe(episode, state["messages"], place)
        return None if observed is episode else {self.channel: observed}

    async def _end(self, state: Any, place: Place) -> dict[str, Any]:
        return {self.channel: await self.explorer.end(state[self.channel], state["messages"], place)}

    def _episode(self, request: ModelRequest[Any]) -> Record:
        episode: Record = request.state[self.channel]  # type: ignore[literal-required]
        return episode

    @contextmanager
    def _failures_noted(self, state: Any) -> Iterator[None]:
        """Mark the episode as failed if an error escapes, so that the next episode learns from it."""
        try:
            yield
        except GraphBubbleUp:  # An interrupt, such as a pause for a human, is not a failure.
            raise
        except BaseException:
            channel = self.channel
            self.explorer.mark_failed(state.get(channel) if isinstance(state, dict) else getattr(state, channel, None))
            raise


class PosteriorSamplingState(AgentState[Any]):
    """State that `PosteriorSampling` adds to the agent."""

    psrl_episode: NotRequired[Annotated[Record, PrivateStateAttr]]
    """The episode; absent from the agent's input and output."""


class PosteriorSampling(ExploringMiddleware):
    """Act on a hypothesis drawn from the posterior in each run, and update the posterior from the run (LLM-PSRL).

        agent = create_agent(
            model, tools, store=store,
            middleware=[PosteriorSampling(model, prior="Nothing is known of ...", world="The rules ...")],
        )

    Each run of the agent is an episode. Before the run, a hypothesis is drawn from the posterior, which is a text in
    the agent's store. The model reads the hypothesis in its system prompt at every call. After the run, the posterior
    is updated with the tools' answers; the agent's last message is not evidence. The agent's output shows none of this.
    The custom stream has it as the events `psrl.hypothesis` and `psrl.posterior`, each with its usage by role, and so
    does the trace.

    A run that is interrupted loses nothing. The next start on the same thread learns from its steps. Any other run does
    so at once if an error ended the run in this process, and otherwise after `abandoned_after` seconds.

    Args:
        sampler: draws hypotheses: a chat model, a `RoleModel` with temperature and prompt, or any object with `sample`.
        policy: acts in place of the agent's model: a chat model, or a `RoleModel`, whose prompt, if any, must use
            {hypothesis}.
        **options: see `amc_agents.psrl.options.ExplorerOptions`.

    Raises:
        ConfigurationError: a setting is invalid.
    """

    state_schema = PosteriorSamplingState
    channel: ClassVar[str] = "psrl_episode"

    def __init__(
        self,
        sampler: BaseChatModel | RoleModel | Sampler,
        *,
        policy: BaseChatModel | RoleModel | None = None,
        **options: Unpack[ExplorerOptions],
    ) -> None:
        super().__init__()
        self._explorer = PosteriorSamplingExplorer(sampler, **options)
        self._policy = RoleModel(policy) if isinstance(policy, BaseChatModel) else policy
        self._prompt = checked_prompt(self._policy.prompt if self._policy else None)

    @property
    @override
    def explorer(self) -> PosteriorSamplingExplorer:
        return self._explorer

    @override
    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        with (
            self._failures_noted(request.state),
            self._paying(request),
        ):
            return handler(self._with_hypothesis(request))

    @override
    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        with (
            self._failures_noted(request.state),
            self._paying(request),
        ):
            return await handler(self._with_hypothesis(request))

    def _paying(self, request: ModelRequest[Any]) -> AbstractContextManager[None]:
        return bounded(self.explorer.budget, None, self, self._policy or request.model)

    def _with_hypothesis(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        text = hypothesis_prompt(self._episode(request)["hypothesis"], self._prompt)
        informed = request.override(system_message=with_system_text(request.system_message, text))
        return informed if self._policy is None else informed.override(model=self._policy.tempered)


class InformationDirectedState(AgentState[Any]):
    """State that `InformationDirected` adds to the agent."""

    ids_episode: NotRequired[Annotated[Record, PrivateStateAttr]]
    """The episode; absent from the agent's input and output."""


class InformationDirected(ExploringMiddleware):
    """Draw each turn from listed actions so that regret squared per bit of information is least (LLM-IDS).

        def pulls(messages):
            pulled = isinstance(messages[-1], ToolMessage)
            return [] if pulled else [{"name": "pull", "args": {"arm": arm}} for arm in range(11)]

        agent = create_agent(
            model, [pull], store=store,
            middleware=[InformationDirected(model, pulls, prior="...", world="...")],
        )

    If the function lists no action, the agent's model answers as it would without this middleware, for example to sum
    up. A function that always lists actions keeps the agent acting until its recursion limit.

    The posterior is updated after each step by default. The posterior and interrupted runs are handled as by
    `PosteriorSampling`. Events: `ids.episode`, `ids.decision`, `ids.posterior`.

    Args:
        regret: estimates the regret of each action: a chat model, a `RoleModel`, or an estimator of both regret and
            information.
        actions: texts and tool calls, or a function that lists them given the conversation.
        information: estimates the information from each action. Default: the model of `regret`.
        best_return: return of an optimal policy, if known; `regret` then estimates returns.
        **options: see `amc_agents.psrl.options.ExplorerOptions`.

    Raises:
        ConfigurationError: a setting is invalid.
    """

    state_schema = InformationDirectedState
    channel: ClassVar[str] = "ids_episode"

    def __init__(
        self,
        regret: BaseChatModel | RoleModel | Estimator,
        actions: ListedActions,
        *,
        information: BaseChatModel | RoleModel | None = None,
        best_return: float | None = None,
        **options: Unpack[ExplorerOptions],
    ) -> None:
        super().__init__()
        self._explorer = InformationDirectedExplorer(
            regret, actions, information=information, best_return=best_return, **options
        )

    @property
    @override
    def explorer(self) -> InformationDirectedExplorer:
        return self._explorer

    @override
    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> Answer:
        with self._failures_noted(request.state), bounded(self.explorer.budget, None, self, request.model):
            actions, episode = self._explorer.actions_at(request.messages), self._episode(request)
            if not actions:
                return handler(request)
            return in_sync(
                request.runtime, lambda place: self._explorer.choose(episode, request.messages, actions, place)
            )

    @override
    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> Answer:
        with self._failures_noted(request.state), bounded(self.explorer.budget, None, self, request.model):
            actions, episode = self._explorer.actions_at(request.messages), self._episode(request)
            if not actions:
                return await handler(request)
            return await self._explorer.choose(episode, request.messages, actions, Place(request.runtime))
