"""LLM-IDS in an agent of LangChain's: each turn is drawn by what the actions cost and what they teach."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, ClassVar, NotRequired, Unpack

from langchain.agents.middleware import AgentState
from langchain.agents.middleware.types import ModelRequest, ModelResponse, PrivateStateAttr
from langchain_core.language_models import BaseChatModel

from amc_agents.psrl.conversation.information_directed import InformationDirectedExplorer, ListedActions
from amc_agents.psrl.conversation.options import ExplorerOptions, Place, in_sync
from amc_agents.psrl.estimates import Estimator
from amc_agents.psrl.exploring_middleware import Answer, ExploringMiddleware, episode_in
from amc_agents.psrl.role_models import RoleModel
from amc_agents.runtime.deciding_model import Record


class InformationDirectedState(AgentState[Any]):
    """What the middleware keeps."""

    ids_episode: NotRequired[Annotated[Record, PrivateStateAttr]]
    """Private: in no input and no output of the agent."""


class InformationDirected(ExploringMiddleware):
    """Each turn is one of the listed actions, drawn where regret squared per bit of information is least (LLM-IDS).

        def pulls(messages):
            pulled = isinstance(messages[-1], ToolMessage)
            return [] if pulled else [{"name": "pull", "args": {"arm": arm}} for arm in range(11)]

        agent = create_agent(
            model, [pull], store=store,
            middleware=[InformationDirected(model, pulls, prior="...", world="...")],
        )

    Where a function lists no action, the agent's model answers as it would without this: so that it can sum up. A list
    that never ends keeps the agent acting until its recursion limit.

    The posterior is updated after each step by default. It and a run that dies half-way: as for `PosteriorSampling`.
    Events: `ids.episode`, `ids.decision`, `ids.posterior`.

    Args:
        regret: says what an action costs: a chat model, a `RoleModel`, or an estimator that says both.
        actions: texts and tool calls, or a function of the conversation that lists them.
        information: says what an action teaches. Default: the model of `regret`.
        best_return: what an optimal policy earns, where that is known; `regret` is then asked for returns.
        **options: see `amc_agents.psrl.conversation.options.ExplorerOptions`.

    Raises:
        ConfigurationError: a setting makes no sense.
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
    def explorer(self) -> InformationDirectedExplorer:
        """Draws and learns."""
        return self._explorer

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> Answer:
        """Draw the turn."""
        with self._mourning(request.state):
            listed, episode = self._explorer.listed(request.messages), episode_in(request, self.channel)
            if not listed:
                return handler(request)
            return in_sync(
                request.runtime, lambda place: self._explorer.choose(episode, request.messages, listed, place)
            )

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> Answer:
        """Draw the turn."""
        with self._mourning(request.state):
            listed, episode = self._explorer.listed(request.messages), episode_in(request, self.channel)
            if not listed:
                return await handler(request)
            return await self._explorer.choose(episode, request.messages, listed, Place(request.runtime))
