"""Episodes of PSRL and IDS over a conversation: begin with an up-to-date posterior, record steps, update it.

An episode is a record in the agent's state, so it survives with the state. Its steps are also written to a journal in
the posterior's store after each turn, so that nothing is lost if the state is.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableLambda
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from amc_agents.errors import AgentContractError, ConfigurationError
from amc_agents.models.seeding import particle_rng, use_rng
from amc_agents.psrl.conversation.journal import OpenEpisode, OpenEpisodes
from amc_agents.psrl.conversation.messages import (
    answered_steps,
    episode_of,
    message_ids,
    newest_input,
    request_text,
)
from amc_agents.psrl.conversation.options import ExplorerOptions, Place
from amc_agents.psrl.learning import EpisodeProgress, Learner, Learning
from amc_agents.psrl.posterior.store import StorePosterior
from amc_agents.psrl.posterior.updates import PosteriorMemory, Version, dropped_statements
from amc_agents.psrl.role_models import RoleModel, as_role_model, as_updater
from amc_agents.psrl.roles import Updater
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
