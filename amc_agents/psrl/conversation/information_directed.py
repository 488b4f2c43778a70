"""IDS over a conversation: each turn is drawn from listed actions by their regret and their information."""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage

from amc_agents.errors import ConfigurationError
from amc_agents.psrl.conversation.explorer import Explorer
from amc_agents.psrl.conversation.messages import episode_of
from amc_agents.psrl.conversation.options import ExplorerOptions, Place
from amc_agents.psrl.estimates import Estimator
from amc_agents.psrl.ids import InformationDirectedChoice, KnownEstimates
from amc_agents.psrl.role_models import RoleModel, as_estimator, as_role_model
from amc_agents.quoting import quoted
from amc_agents.runtime.deciding import Record

Action = str | Mapping[str, Any]
"""A text, or a tool call as `{"name": ..., "args": {...}}`."""
ListedActions = Sequence[Action] | Callable[[Sequence[BaseMessage]], Sequence[Action]]
"""All actions, or a function that lists them given the conversation. If it lists none, the model itself answers."""


class InformationDirectedExplorer(Explorer):
    """Draws actions and learns from their outcomes.

    Args:
        regret: estimates the regret of each action: a chat model, a `RoleModel` with temperature and prompt, or an
            `amc_agents.psrl.estimates.Estimator` of both regret and information.
        actions: the possible actions.
        information: estimates the information from each action. Default: the model of `regret`.
        best_return: see `amc_agents.psrl.estimates.ChatEstimator`.
        **options: see `ExplorerOptions`. The default updater is the model of `regret`.
    """

    def __init__(
        self,
        regret: BaseChatModel | RoleModel | Estimator,
        actions: ListedActions,
        *,
        information: BaseChatModel | RoleModel | None = None,
        best_return: float | None = None,
        **options: Unpack[ExplorerOptions],
    ) -> None:
        self._regret, self._actions, self._best_return = as_role_model(regret), actions, best_return
        default = RoleModel(self._regret.model) if isinstance(self._regret, RoleModel) else None
        self._information = as_role_model(information)
        self._known: KnownEstimates = OrderedDict()
        if information is not None and default is None:
            raise ConfigurationError(
                "an estimator gives both the regret and the information of actions: leave out information="
            )
        super().__init__("ids", default, options)

    async def start(self, episode: Record | None, messages: Sequence[BaseMessage], place: Place) -> Record:
        """Begin an episode. Nothing is drawn before the first turn."""
        new: Record = {}

        async def work() -> Record:
            begun, version, failed = await self.begin(episode, messages, place)
            new.update(begun)
            return {"episode": new["name"], "version": version.number, "failed": failed}

        await self.traced("episode", {"thread": place.thread}, work)
        return new

    def actions_at(self, messages: Sequence[BaseMessage]) -> dict[str, Action]:
        """Return the possible actions at this point of a conversation, keyed by their text."""
        actions = self._actions(messages) if callable(self._actions) else self._actions
        return {action if isinstance(action, str) else _call_text(action): action for action in actions}

    async def choose(
        self, episode: Record, messages: Sequence[BaseMessage], actions: Mapping[str, Action], place: Place
    ) -> AIMessage:
        """Draw the next turn.

        Raises:
            RoleError: an estimate failed.
        """
        trajectory = episode_of(messages, episode["before"])
        estimator = as_estimator(self._regret, self._information, self._best_return)

        async def work() -> Record:
            version = await self.posterior(place)
            rng = self.rng(version.number, len(messages))
            choice = InformationDirectedChoice(estimator, self._known)
            decision = await choice.choose(self.rules(episode), version.text, trajectory, list(actions), rng)
            return {"episode": episode["name"], "version": version.number, **decision.as_plain()}

        record = await self.traced("decision", {"episode": episode["name"], "actions": list(actions)}, work)
        return _message(actions[record["action"]])


def _call_text(call: Mapping[str, Any]) -> str:
    if set(call) != {"name", "args"}:
        raise ConfigurationError(
            f'expected an action as a text or as {{"name": ..., "args": {{...}}}}, got {quoted(dict(call))}'
        )
    return json.dumps(dict(call), sort_keys=True, ensure_ascii=False, default=str)


def _message(action: Action) -> AIMessage:
    if isinstance(action, str):
        return AIMessage(action)
    call = {"name": action["name"], "args": dict(action["args"]), "id": f"call-{uuid.uuid4().hex[:12]}"}
    return AIMessage("", tool_calls=[{**call, "type": "tool_call"}])
