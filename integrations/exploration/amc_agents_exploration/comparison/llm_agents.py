"""Exploring agents made of language models, named by a string `kind:provider:model?option=value&...`.

The kinds are psrl and ids from LLM-PSRL, and its baselines reflexion, icrl and icpi. For psrl and ids, `kind:exact`
computes every role exactly, without a model call; the posterior is the same text as with a model. `kind:embedded:name`
uses a small model in this process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

from langchain_core.language_models import BaseChatModel

from amc_agents.critics.asking import build_model, key_of
from amc_agents.errors import ConfigurationError
from amc_agents.models.embedded import EmbeddedChatModel, model_folder
from amc_agents.psrl.options import RoleModel, as_estimator, as_sampler, as_updater
from amc_agents.psrl.posterior.memory import InMemoryPosterior
from amc_agents.psrl.posterior.priors import impossible
from amc_agents.quoting import quoted
from amc_agents.types import Task, Trajectory
from amc_agents_exploration import BANDIT_SAMPLER
from amc_agents_exploration.baselines import InContextPolicyIteration, InContextRl, Reflexion
from amc_agents_exploration.episodic import EpisodicAgent, LlmInformationDirected, LlmPosteriorSampling
from amc_agents_exploration.exact import exact_model
from amc_agents_exploration.policy import as_policy
from amc_agents_exploration.worlds import RiverSwim, read_swum

EXACT: Final = "exact"
_SHARED = ("temperature", "timeout", "base_url", "key_env")
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "psrl": (*_SHARED, "exact", "prior", "cache"),
    "ids": (*_SHARED, "exact", "prior"),
    "reflexion": _SHARED,
    "icrl": (*_SHARED, "keep"),
    "icpi": _SHARED,
}
"""Options of each kind; see `docs/explore.md`."""
_EXACT_ROLES: Mapping[str, tuple[str, ...]] = {
    "psrl": ("sampler", "policy", "updater"),
    "ids": ("estimator", "updater"),
}


@dataclass(frozen=True)
class LlmAgent:
    """A parsed agent string."""

    kind: str
    model: str
    """`provider:model`, or `EXACT`."""
    options: Mapping[str, str]

    @property
    def takes_temperature(self) -> bool:
        """True if the agent explores by the sampling of a language model: PSRL's sampler, otherwise the policy."""
        # IDS samples actions itself, from the model's estimates.
        return self.kind != "ids" and "sampler" not in self._exact

    def make(self, task: Task, horizon: int, temperature: float | None = None) -> EpisodicAgent:
        """Return a fresh agent for one trial. It draws from the episode's random generator.

        Args:
            task: the first task of the trial.
            horizon: number of steps of an episode.
            temperature: temperature of the role that explores; None: the temperature of the other roles.

        Raises:
            ConfigurationError: an option is invalid, or the model cannot be created.
        """
        match self.kind:
            case "psrl":
                return LlmPosteriorSampling(
                    self._memory(task),
                    EXACT if "sampler" in self._exact else as_sampler(self._sampler(temperature)),
                    EXACT if "policy" in self._exact else as_policy(self._role()),
                    EXACT if "updater" in self._exact else as_updater(self._role()),
                    cache_by=_cave if self._caches(task) else None,
                )
            case "ids":
                return LlmInformationDirected(
                    self._memory(task),
                    EXACT if "estimator" in self._exact else as_estimator(self._role(), self._role(), None),
                    EXACT if "updater" in self._exact else as_updater(self._role()),
                )
        policy, other, timeout = self._role(temperature).answers("policy"), self._role(), self._number("timeout")
        match self.kind:
            case "reflexion":
                return Reflexion(policy, other.answers("reflection"), timeout=timeout)
            case "icrl":
                keep = self._number("keep")
                return InContextRl(policy, keep=1.0 if keep is None else keep, timeout=timeout)
            case _:
                imagines = other.answers("transition function"), other.answers("reward function")
                return InContextPolicyIteration(policy, *imagines, horizon=horizon, timeout=timeout)

    @property
    def _exact(self) -> tuple[str, ...]:
        """The roles that are computed exactly."""
        roles = _EXACT_ROLES.get(self.kind, ())
        if self.model == EXACT:
            return roles
        names = tuple(self.options["exact"].split(",")) if "exact" in self.options else ()
        if unknown := [name for name in names if name not in roles]:
            raise ConfigurationError(f"{self.kind} has no role {quoted(unknown[0])}; it has {', '.join(roles)}")
        return names

    def _role(self, temperature: float | None = None) -> RoleModel:
        server = tuple((name, self.options[name]) for name in ("base_url", "key_env") if name in self.options)
        chosen = self._number("temperature") if temperature is None else temperature
        return RoleModel(_chat_model(self.model, server), chosen, timeout=self._number("timeout"))

    def _sampler(self, temperature: float | None) -> RoleModel:
        # An exact policy needs a value for each unknown, and an exact updater keeps the form of the prior.
        is_typed = {"policy", "updater"} <= set(self._exact)
        return replace(self._role(temperature), check=impossible if is_typed else None)

    def _memory(self, task: Task) -> InMemoryPosterior:
        if "prior" not in self.options:
            return InMemoryPosterior(str(exact_model(task).prior(task)))
        path = Path(self.options["prior"])
        try:
            return InMemoryPosterior(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"the prior {quoted(str(path), 200)} cannot be read: {error}") from error

    def _caches(self, task: Task) -> bool:
        if "cache" not in self.options:
            return False
        if self.options["cache"] != "cave" or not isinstance(task.payload, RiverSwim):
            raise ConfigurationError(
                f"the only cache is cache=cave, for caves of a river; got cache={self.options['cache']} for "
                f"{quoted(task.id)}"
            )
        return True

    def _number(self, option: str) -> float | None:
        if option not in self.options:
            return None
        try:
            number = float(self.options[option])
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and number >= 0):
            raise ConfigurationError(
                f"agent kind {quoted(self.kind)}: {option} must be a number from 0 up, got "
                f"{quoted(self.options[option])}"
            )
        return number


def llm_agent(agent: str) -> LlmAgent | None:
    """Parse an agent string; None if its kind is not one of `OPTIONS`.

    Raises:
        ConfigurationError: the model is missing, or an option is unknown.
    """
    kind, _, rest = agent.partition(":")
    if kind not in OPTIONS:
        return None
    model, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if not model or (model == EXACT and kind not in _EXACT_ROLES):
        raise ConfigurationError(f"agent {quoted(agent)} names no model: expected {kind}:provider:model")
    if unknown := [name for name in options if name not in OPTIONS[kind]]:
        raise ConfigurationError(
            f"agent kind {quoted(kind)} has no option {quoted(unknown[0])}; it has {', '.join(OPTIONS[kind])}"
        )
    return LlmAgent(kind, model, options)


@lru_cache(maxsize=16)
def _chat_model(name: str, server: tuple[tuple[str, str], ...]) -> BaseChatModel:
    """Create a chat model; all trials of a process share it."""
    options: dict[str, Any] = dict(server)
    provider, _, folder = name.partition(":")
    if provider == "embedded":
        if options:
            raise ConfigurationError(f"{quoted(name)} runs in this process: leave out {', '.join(options)}")
        own = folder == BANDIT_SAMPLER.name
        return EmbeddedChatModel(model=str(model_folder(BANDIT_SAMPLER if own else folder)))
    if "key_env" in options:
        options["api_key"] = key_of(f"agent with {quoted(name)}", options.pop("key_env"))
    return build_model(name, **options)


def _cave(trajectory: Trajectory) -> int:
    """Return the cave of a river that a trajectory has reached."""
    swims = (read_swum(step.observation) for step in reversed(trajectory.steps))
    return next((swum.arrived for swum in swims if swum is not None), 1)
