"""Episodes of PSRL and IDS over a conversation: begin with an up-to-date posterior, record steps, update it.

An episode is a record in the agent's state, so it survives with the state. Its steps are also written to a journal in
the posterior's store after each turn, so that nothing is lost if the state is.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack
from weakref import WeakKeyDictionary

import numpy as np
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langchain_core.runnables import RunnableLambda
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from amc_agents.errors import AgentContractError, ConfigurationError
from amc_agents.models.seeding import particle_rng, use_rng
from amc_agents.psrl.episodes import (
    OpenEpisode,
    OpenEpisodes,
    answered_steps,
    episode_of,
    message_ids,
    newest_input,
    request_text,
)
from amc_agents.psrl.ids import Estimator, InformationDirectedChoice, KnownEstimates
from amc_agents.psrl.options import (
    ExplorerOptions,
    Place,
    RoleModel,
    as_estimator,
    as_role_model,
    as_sampler,
    as_updater,
)
from amc_agents.psrl.posterior.memory import PosteriorMemory, Version
from amc_agents.psrl.posterior.retained import dropped_statements
from amc_agents.psrl.posterior.store import StorePosterior
from amc_agents.psrl.posterior.updates import EpisodeProgress, Learner, Learning
from amc_agents.psrl.roles import Sampler, Updater
from amc_agents.quoting import quoted
from amc_agents.runtime.budget_keeper import bounded
from amc_agents.runtime.deciding import Record
from amc_agents.runtime.inner_calls import stream_writer
from amc_agents.runtime.metering import policy_meter
from amc_agents.runtime.tracing import traced_work
from amc_agents.types import Step
from amc_agents.usage import counting


class Explorer:
    """Begins episodes, learns from their steps, and ends them.

    Args:
        method: prefix of the events: "psrl" or "ids".
        default: model of the roles that the options leave out.
        options: see `ExplorerOptions`.

    Raises:
        ConfigurationError: an option is unknown, or no updater is given.
    """

    def __init__(self, method: str, default: RoleModel | None, options: ExplorerOptions) -> None:
        if unknown := set(options) - set(ExplorerOptions.__annotations__):
            raise ConfigurationError(f"unknown options: {', '.join(sorted(unknown))}; see ExplorerOptions")
        self.method, self._world = method, options.get("world") or ""
        self._rules = self._world or NO_RULES
        given = options.get("updater")
        updater: Any = default if given is None else as_role_model(given)
        if updater is None:
            raise ConfigurationError("no role can update the posterior: give a model, or updater=")
        self._updater: RoleModel | Updater = updater
        prior = options.get("prior")
        self._prior = None if prior is None else str(prior)
        self._namespace, self._memory = options.get("namespace") or "amc.posterior", options.get("memory")
        self.learning = Learning(
            update=options.get("update") or ("trajectory" if method == "psrl" else "step"),
            guard=options.get("guard", dropped_statements),
            on_update_error=options.get("on_update_error") or "keep",
            rewards=False,
        )
        self._abandoned_after, self.seed = options.get("abandoned_after", 600.0), options.get("seed")
        self.budget = options.get("budget")
        """Limits for all requests."""
        self._failed_episodes: set[str] = set()
        self._journal_store = InMemoryStore()
        """Store of the journal if the posterior is in `memory`."""
        # Kept between calls because each memory parses a version only once.
        self._memories: WeakKeyDictionary[BaseStore, dict[Any, StorePosterior]] = WeakKeyDictionary()

    async def begin(
        self, episode: Record | None, messages: Sequence[BaseMessage], place: Place
    ) -> tuple[Record, Version, list[str]]:
        """Begin an episode, after learning from episodes that were interrupted.

        Args:
            episode: the last episode in this thread's state.
            messages: the conversation, with the new input at its end.
            place: the runtime.

        Returns:
            The episode, the posterior, and the failed updates that were skipped.

        Raises:
            ConfigurationError: the graph has no store.
            PosteriorError: the posterior has neither a version nor a prior.
        """
        memory, journal = self._storage(place)
        learner = self._learner(memory, place)
        if episode and episode["open"]:
            earlier = messages[: len(messages) - len(newest_input(messages))]
            interrupted, steps = await self._current(episode, earlier, journal)
            progress = EpisodeProgress(interrupted["name"], interrupted["n_recorded"])
            await learner.keep(progress, steps, interrupted["told"])
            await journal.close(interrupted["name"])
        for record in await journal.all():
            if self._is_abandoned(record, place):
                await self._recover(learner, journal, record)
        with use_rng(self.rng(0)):
            version = await learner.catch_up(self._rules)
        new: Record = {
            "name": uuid.uuid4().hex[:12],
            "thread": place.thread,
            "before": message_ids(messages),
            "told": request_text(messages),
            "n_recorded": 0,
            "open": True,
        }
        return new, version, learner.failures

    async def observe(self, episode: Record, messages: Sequence[BaseMessage], place: Place) -> Record:
        """Write new steps to the journal, and learn from them if updates happen after each step."""
        if len(answered_steps(episode_of(messages, episode["before"]))) <= episode["n_recorded"]:
            return episode
        memory, journal = self._storage(place)
        episode, steps = await self._current(episode, messages, journal)
        if len(steps) <= episode["n_recorded"]:
            return episode
        if self.learning.update == "step":
            return await self._learn(memory, episode, steps, place)
        record = OpenEpisode(episode["name"], episode["thread"], episode["told"], steps, episode["n_recorded"])
        await journal.write(record)
        return episode

    async def end(self, episode: Record, messages: Sequence[BaseMessage], place: Place) -> Record:
        """Learn from the remaining steps and close the episode."""
        memory, journal = self._storage(place)
        episode, steps = await self._current(episode, messages, journal)
        if len(steps) > episode["n_recorded"]:
            episode = await self._learn(memory, episode, steps, place)
        await journal.close(episode["name"])
        return {**episode, "before": [], "open": False}

    async def posterior(self, place: Place) -> Version:
        """Return the current posterior."""
        return await self._storage(place)[0].head()

    def rules(self, episode: Record) -> str:
        """Return the roles' context besides the posterior: the rules and the user's request."""
        return "\n\n".join(text for text in (self._world, episode["told"]) if text) or NO_RULES

    def mark_failed(self, episode: Record | None) -> None:
        """Note that an error ended the episode, so that the next episode of this process learns from it."""
        if episode:
            self._failed_episodes.add(episode["name"])

    def rng(self, *numbers: int) -> np.random.Generator:
        """Return a generator for one draw: derived from the particle's generator, or from the seed and the numbers."""
        particle = particle_rng()
        if particle is not None:
            return particle.spawn(1)[0]
        return np.random.default_rng(None if self.seed is None else [self.seed, *numbers])

    async def traced(self, event: str, inputs: Record, work: Callable[[], Awaitable[Record]]) -> Record:
        """Run `work` as a separate run in the trace, and send its record to the custom stream as an event."""
        name = f"{self.method}.{event}"

        async def run(_: Record) -> Record:
            with traced_work(name) as span, counting() as meter, bounded(self.budget, None, self):
                record = await work()
                usage = {role: used.as_plain() for role, used in meter.read().items()}
                record = {"type": name, **record, "usage": usage}
                span.report(record)
            return record

        record = await RunnableLambda(run, name=name).ainvoke(inputs)
        stream_writer()(record)
        return record

    async def _current(
        self, episode: Record, messages: Sequence[BaseMessage], journal: OpenEpisodes
    ) -> tuple[Record, tuple[Step, ...]]:
        """Return the episode, with steps counted that other processes recorded, and its answered steps."""
        n_recorded = max(episode["n_recorded"], await journal.n_recorded(episode["name"]))
        return {**episode, "n_recorded": n_recorded}, answered_steps(episode_of(messages, episode["before"]))

    async def _learn(self, memory: PosteriorMemory, episode: Record, steps: tuple[Step, ...], place: Place) -> Record:
        learner = self._learner(memory, place)
        progress = EpisodeProgress(episode["name"], episode["n_recorded"])
        evidence = await learner.keep(progress, steps, episode["told"])
        assert evidence is not None

        async def work() -> Record:
            with use_rng(self.rng(len(steps))):
                version = await learner.learn(self._rules, evidence)
            return {
                "episode": episode["name"],
                "version": version.number,
                "n_steps": len(steps),
                "dropped": list(version.dropped),
                "failed": learner.failures,
            }

        await self.traced("posterior", {"episode": episode["name"], "experience": evidence.observation}, work)
        return {**episode, "n_recorded": progress.n_recorded}

    async def _recover(self, learner: Learner, journal: OpenEpisodes, record: OpenEpisode) -> None:
        """Store the steps of an abandoned episode as evidence. If the episode resumes, it sees what was recorded."""
        if len(record.steps) > record.n_recorded:
            await learner.keep(EpisodeProgress(record.name, record.n_recorded), record.steps, record.context)
            await journal.write(replace(record, n_recorded=len(record.steps)))
        elif time.time() - record.at > RECORDS_EXPIRE_AFTER:
            await journal.close(record.name)
        self._failed_episodes.discard(record.name)

    def _is_abandoned(self, record: OpenEpisode, place: Place) -> bool:
        same_thread = place.thread is not None and record.thread == place.thread
        expired = time.time() - record.at > self._abandoned_after
        return same_thread or record.name in self._failed_episodes or expired

    def _learner(self, memory: PosteriorMemory, place: Place) -> Learner:
        return Learner(memory, as_updater(self._updater), self.learning)

    def _storage(self, place: Place) -> tuple[PosteriorMemory, OpenEpisodes]:
        if self._memory is not None:
            if policy_meter() is not None:
                raise AgentContractError(
                    "memory= keeps the posterior outside the agent's store, and every particle of amc() would add its "
                    "evidence to it: leave memory= out, and create the agent or compile the graph with store="
                )
            return self._memory, OpenEpisodes(self._journal_store, ("episodes",))
        if place.store is None:
            raise ConfigurationError(
                "the posterior is kept in the graph's store, and the graph has none: compile the graph or create the "
                "agent with store=, or give memory="
            )
        given = self._namespace(place.runtime) if callable(self._namespace) else self._namespace
        memories = self._memories.setdefault(place.store, {})
        key = given if isinstance(given, str) else tuple(given)
        if key not in memories:
            memories[key] = StorePosterior(place.store, given, prior=self._prior)
        return memories[key], OpenEpisodes(place.store, memories[key].namespace)


NO_RULES = "Nothing but what the episodes tell."
"""Text for the roles if no rules were given."""
RECORDS_EXPIRE_AFTER = 30 * 86400.0
"""Seconds after which the journal record of an abandoned episode is deleted. Its steps have long been evidence."""


class PosteriorSamplingExplorer(Explorer):
    """Draws hypotheses and learns from the outcomes of acting on them.

    Args:
        sampler: draws hypotheses: a chat model, a `RoleModel` with temperature and prompt, or any object with `sample`.
        **options: see `ExplorerOptions`. The default updater is the sampler's model.
    """

    def __init__(self, sampler: BaseChatModel | RoleModel | Sampler, **options: Unpack[ExplorerOptions]) -> None:
        self._sampler = as_role_model(sampler)
        is_model = isinstance(self._sampler, RoleModel)
        super().__init__("psrl", RoleModel(self._sampler.model) if is_model else None, options)

    async def start(self, episode: Record | None, messages: Sequence[BaseMessage], place: Place) -> Record:
        """Begin an episode and draw its hypothesis.

        Raises:
            RoleError: the sampler failed. The posterior is unchanged, and earlier observations are stored.
        """
        new: Record = {}

        async def work() -> Record:
            begun, version, failed = await self.begin(episode, messages, place)
            sampler = as_sampler(self._sampler)
            hypothesis = await sampler.sample(self.rules(begun), version.text, self.rng(version.number))
            new.update(begun, hypothesis=hypothesis, version=version.number)
            return {"episode": new["name"], "version": version.number, "hypothesis": hypothesis, "failed": failed}

        await self.traced("hypothesis", {"thread": place.thread}, work)
        return new


def hypothesis_prompt(hypothesis: str, prompt: str | None = None) -> str:
    """Format the text that tells a policy to act on a hypothesis.

    Args:
        hypothesis: the hypothesis.
        prompt: a template with {hypothesis}; None for the library's template.
    """
    return (ACT_ON if prompt is None else prompt).format(hypothesis=hypothesis)


def with_system_text(message: SystemMessage | None, text: str) -> SystemMessage:
    """Return a system message with a paragraph appended."""
    if message is None:
        return SystemMessage(text)
    if isinstance(message.content, str):
        return message.model_copy(update={"content": f"{message.content}\n\n{text}"})
    content: list[Any] = [*message.content, {"type": "text", "text": text}]
    return message.model_copy(update={"content": content})


def checked_prompt(prompt: str | None) -> str | None:
    """Return a template for `hypothesis_prompt`.

    Raises:
        ConfigurationError: the template does not use {hypothesis}.
    """
    if prompt is not None and "{hypothesis}" not in prompt:
        raise ConfigurationError("the policy's prompt must use {hypothesis}, which is all that the policy acts on")
    return prompt


ACT_ON = """\
Take the following as the whole truth about the world until the task is done, even where you would not be sure of it. \
Choose every action so that it is the best one if this is true, over all that is still to come:

<hypothesis>
{hypothesis}
</hypothesis>\
"""


Action = str | Mapping[str, Any]
"""A text, or a tool call as `{"name": ..., "args": {...}}`."""
ListedActions = Sequence[Action] | Callable[[Sequence[BaseMessage]], Sequence[Action]]
"""All actions, or a function that lists them given the conversation. If it lists none, the model itself answers."""


class InformationDirectedExplorer(Explorer):
    """Draws actions and learns from their outcomes.

    Args:
        regret: estimates the regret of each action: a chat model, a `RoleModel` with temperature and prompt, or an
            `amc_agents.psrl.ids.Estimator` of both regret and information.
        actions: the possible actions.
        information: estimates the information from each action. Default: the model of `regret`.
        best_return: see `amc_agents.psrl.ids.ChatEstimator`.
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
