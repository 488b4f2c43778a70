"""LLM-PSRL in an agent of LangChain's: each run acts on a hypothesis drawn from a written posterior, and updates it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, ClassVar, NotRequired, Unpack

from langchain.agents.middleware import AgentState
from langchain.agents.middleware.types import ModelRequest, ModelResponse, PrivateStateAttr
from langchain_core.language_models import BaseChatModel

from amc_agents.psrl.conversation.options import ExplorerOptions
from amc_agents.psrl.conversation.posterior_sampling import (
    PosteriorSamplingExplorer,
    acting_on,
    checked_prompt,
    with_system_text,
)
from amc_agents.psrl.exploring_middleware import ExploringMiddleware, episode_in
from amc_agents.psrl.role_models import RoleModel
from amc_agents.psrl.roles import Sampler
from amc_agents.runtime.deciding_model import Record


class PosteriorSamplingState(AgentState[Any]):
    """What the middleware keeps."""

    psrl_episode: NotRequired[Annotated[Record, PrivateStateAttr]]
    """Private: in no input and no output of the agent."""


class PosteriorSampling(ExploringMiddleware):
    """Each run of the agent is an episode: a hypothesis is drawn, acted on, and learnt from (LLM-PSRL).

        agent = create_agent(
            model, tools, store=store,
            middleware=[PosteriorSampling(model, prior="Nothing is known of ...", world="The rules ...")],
        )

    Before a run, a hypothesis is drawn from the posterior, which is text in the agent's store. The model reads it in
    its system prompt at every call. After the run the posterior is updated with what the tools have answered; what the
    agent says last is no evidence. The user sees nothing of this: it is in the custom stream (`psrl.hypothesis`,
    `psrl.posterior`, each with its usage by role) and in the trace.

    A run that dies half-way loses nothing. What it saw is learnt at the next start on the same thread; by any other run
    at once where an error ended it in this process, else after `abandoned_after` seconds.

    Args:
        sampler: draws hypotheses: a chat model, a `RoleModel` with temperature and prompt, or anything with `sample`.
        policy: acts in place of the agent's model: a chat model, or a `RoleModel` whose prompt, if any, uses
            {hypothesis}.
        **options: see `amc_agents.psrl.conversation.options.ExplorerOptions`.

    Raises:
        ConfigurationError: a setting makes no sense.
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
    def explorer(self) -> PosteriorSamplingExplorer:
        """Draws and learns."""
        return self._explorer

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Act on the hypothesis."""
        with self._mourning(request.state):
            return handler(self._acting(request))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """Act on the hypothesis."""
        with self._mourning(request.state):
            return await handler(self._acting(request))

    def _acting(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        text = acting_on(episode_in(request, self.channel)["hypothesis"], self._prompt)
        acting = request.override(system_message=with_system_text(request.system_message, text))
        return acting if self._policy is None else acting.override(model=self._policy.tempered)
