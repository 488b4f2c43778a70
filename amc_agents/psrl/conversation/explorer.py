"""What the faces of PSRL and IDS share: a posterior that catches up, is acted on, and learns from each episode.

An episode is a record in the agent's own state, so that it survives with the state; what it saw is also kept in the
posterior's store after each step, so that nothing is lost where the state is.
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
from amc_agents.psrl.conversation.messages import episode_of, ids_of, learnable, newest_input, told_of
from amc_agents.psrl.conversation.options import ExplorerOptions, Place
from amc_agents.psrl.learning import Learner, Learning, Progress
from amc_agents.psrl.posterior.store import StorePosterior
from amc_agents.psrl.posterior.updates import PosteriorMemory, Version, dropped_statements
from amc_agents.psrl.role_models import RoleModel, as_updater, role_model
from amc_agents.psrl.roles import Updater
from amc_agents.runtime.deciding_model import Record
from amc_agents.runtime.inner_calls import stream_writer
from amc_agents.runtime.metering import policy_meter
from amc_agents.types import Step
from amc_agents.usage import counting


class Explorer:
    """Begins episodes, learns from their steps, and ends them.

    Args:
        method: names the events: "psrl" or "ids".
        default: plays the roles that are not given.
        options: see `ExplorerOptions`.

    Raises:
        ConfigurationError: an unknown option, or no updater.
    """

    def __init__(self, method: str, default: RoleModel | None, options: ExplorerOptions) -> None:
        if unknown := set(options) - set(ExplorerOptions.__annotations__):
            raise ConfigurationError(f"unknown: {', '.join(sorted(unknown))}; see ExplorerOptions for what there is")
        self.method, self._world = method, options.get("world") or ""
        self._rules = self._world or NO_RULES
        given = options.get("updater")
        updater: Any = default if given is None else role_model(given)
        if updater is None:
            raise ConfigurationError("nobody writes the posterior: give a model, or updater=")
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
        self._dead: set[str] = set()
        self._own = InMemoryStore()
        # Each reads only what is new.
        self._memories: WeakKeyDictionary[BaseStore, dict[Any, StorePosterior]] = WeakKeyDictionary()

    async def begin(
        self, episode: Record | None, messages: Sequence[BaseMessage], place: Place
    ) -> tuple[Record, Version, list[str]]:
        """A new episode: what was left of others is learnt.

        Args:
            episode: the last one of this thread's state.
            messages: the conversation, the new input at its end.
            place: where this happens.

        Returns:
            The episode; the posterior; and which updates failed and were let be.

        Raises:
            ConfigurationError: there is no store.
            PosteriorError: there is no posterior and no prior.
        """
        memory, journal = self._places(place)
        learner = self._learner(memory, place)
        asked = newest_input(messages)
        if episode and episode["open"]:
            died, steps = await self._now(episode, messages[: len(messages) - len(asked)], journal)
            await learner.keep(Progress(died["name"], died["n_recorded"]), steps, died["told"])
            await journal.close(died["name"])
        for one in await journal.all():
            if self._is_dead(one, place):
                await self._taken_over(learner, journal, one)
        with use_rng(self.rng(0)):
            version = await learner.catch_up(self._rules)
        new: Record = {
            "name": uuid.uuid4().hex[:12],
            "thread": place.thread,
            "before": ids_of(messages),
            "told": told_of(messages),
            "n_recorded": 0,
            "open": True,
        }
        return new, version, learner.failures

    async def observe(self, episode: Record, messages: Sequence[BaseMessage], place: Place) -> Record:
        """Keep what has happened since, and learn from it where that is to be done after each step."""
        if len(learnable(episode_of(messages, episode["before"]))) <= episode["n_recorded"]:
            return episode
        memory, journal = self._places(place)
        episode, steps = await self._now(episode, messages, journal)
        if len(steps) <= episode["n_recorded"]:
            return episode
        if self.learning.update == "step":
            return await self._learnt(memory, episode, steps, place)
        told = episode["name"], episode["thread"], episode["told"]
        await journal.write(OpenEpisode(*told, steps, episode["n_recorded"]))
        return episode

    async def end(self, episode: Record, messages: Sequence[BaseMessage], place: Place) -> Record:
        """Learn from what was not learnt yet."""
        memory, journal = self._places(place)
        episode, steps = await self._now(episode, messages, journal)
        if len(steps) > episode["n_recorded"]:
            episode = await self._learnt(memory, episode, steps, place)
        await journal.close(episode["name"])
        return {**episode, "before": [], "open": False}

    async def posterior(self, place: Place) -> Version:
        """The posterior as it is now."""
        return await self._places(place)[0].head()

    def rules(self, episode: Record) -> str:
        """What is told of the world besides experience: the rules, and what this episode asks for."""
        return "\n\n".join(one for one in (self._world, episode["told"]) if one) or NO_RULES

    def died(self, episode: Record | None) -> None:
        """An error ended it in this process: the next one learns from it, wherever it runs."""
        if episode:
            self._dead.add(episode["name"])

    def rng(self, *numbers: int) -> np.random.Generator:
        """The luck of one draw: the particle's own, or that of the seed."""
        own = particle_rng()
        if own is not None:
            return own.spawn(1)[0]
        return np.random.default_rng(None if self.seed is None else [self.seed, *numbers])

    async def told(self, event: str, inputs: Record, work: Callable[[], Awaitable[Record]]) -> Record:
        """Do a piece of work as a run of its own in the trace; its record goes to the custom stream as well."""

        async def traced(_: Record) -> Record:
            with counting() as meter:
                record = await work()
            used = {role: usage.as_plain() for role, usage in meter.read().items()}
            return {"type": f"{self.method}.{event}", **record, "usage": used}

        record = await RunnableLambda(traced, name=f"{self.method}.{event}").ainvoke(inputs)
        stream_writer()(record)
        return record

    async def _now(
        self, episode: Record, messages: Sequence[BaseMessage], journal: OpenEpisodes
    ) -> tuple[Record, tuple[Step, ...]]:
        """The episode, with what others have recorded of it, and its steps."""
        n_recorded = max(episode["n_recorded"], await journal.n_recorded(episode["name"]))
        return {**episode, "n_recorded": n_recorded}, learnable(episode_of(messages, episode["before"]))

    async def _learnt(self, memory: PosteriorMemory, episode: Record, steps: tuple[Step, ...], place: Place) -> Record:
        learner = self._learner(memory, place)
        progress = Progress(episode["name"], episode["n_recorded"])
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

        await self.told("posterior", {"episode": episode["name"], "experience": evidence.observation}, work)
        return {**episode, "n_recorded": progress.n_recorded}

    async def _taken_over(self, learner: Learner, journal: OpenEpisodes, one: OpenEpisode) -> None:
        """Make evidence of an episode that died elsewhere. Should it yet go on, it finds what was recorded."""
        if len(one.steps) > one.n_recorded:
            await learner.keep(Progress(one.name, one.n_recorded), one.steps, one.context)
            await journal.write(replace(one, n_recorded=len(one.steps)))
        elif time.time() - one.at > FORGOTTEN_AFTER:
            await journal.close(one.name)
        self._dead.discard(one.name)

    def _is_dead(self, one: OpenEpisode, place: Place) -> bool:
        same_thread = place.thread is not None and one.thread == place.thread
        return same_thread or one.name in self._dead or time.time() - one.at > self._abandoned_after

    def _learner(self, memory: PosteriorMemory, place: Place) -> Learner:
        return Learner(memory, as_updater(self._updater, place.threads), self.learning)

    def _places(self, place: Place) -> tuple[PosteriorMemory, OpenEpisodes]:
        if self._memory is not None:
            if policy_meter() is not None:
                raise AgentContractError(
                    "memory= keeps the posterior outside the agent's store, and every particle of amc() would add its "
                    "evidence there: leave memory= out and create the agent, or compile the graph, with store="
                )
            return self._memory, OpenEpisodes(self._own, ("episodes",))
        if place.store is None:
            raise ConfigurationError(
                "the posterior is kept in the graph's store, and it has none: compile the graph, or create the agent, "
                "with store=, or give memory="
            )
        given = self._namespace(place.runtime) if callable(self._namespace) else self._namespace
        memories = self._memories.setdefault(place.store, {})
        key = given if isinstance(given, str) else tuple(given)
        if key not in memories:
            memories[key] = StorePosterior(place.store, given, prior=self._prior)
        return memories[key], OpenEpisodes(place.store, memories[key].namespace)


NO_RULES = "Nothing but what the episodes tell."
"""Where no rules were given."""
FORGOTTEN_AFTER = 30 * 86400.0
"""Seconds after which a record of a dead episode is deleted; what it saw was learnt long before."""
