"""Agents made of language models that explore, by a string: `kind:provider:model?option=value&...`.

psrl, ids (LLM-PSRL's own), reflexion, icrl, icpi (what it is compared with). `kind:exact`, for the first two, plays
every role exactly: nothing is asked, and the posterior is the same text as with a model. `kind:embedded:name` asks a
small model in this process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl

from langchain_core.language_models import BaseChatModel

from amc_agents.critics.asking import build_model, key_of
from amc_agents.envs.exploration import RiverSwim, read_swum
from amc_agents.errors import ConfigurationError
from amc_agents.models.embedded import EmbeddedChatModel, model_folder
from amc_agents.psrl.baselines import InContextPolicyIteration, InContextRl, Reflexion
from amc_agents.psrl.episodes import EpisodicAgent
from amc_agents.psrl.exact import exact_model
from amc_agents.psrl.exact.roles import impossible
from amc_agents.psrl.ids import LlmInformationDirected
from amc_agents.psrl.posterior.updates import InMemoryPosterior
from amc_agents.psrl.posterior_sampling import LlmPosteriorSampling
from amc_agents.psrl.role_models import RoleModel, as_estimator, as_policy, as_sampler, as_updater
from amc_agents.types import Task, Trajectory

EXACT: Final = "exact"
_SHARED = ("temperature", "timeout", "base_url", "key_env")
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "psrl": (*_SHARED, "exact", "prior", "cache"),
    "ids": (*_SHARED, "exact", "prior"),
    "reflexion": _SHARED,
    "icrl": (*_SHARED, "keep"),
    "icpi": _SHARED,
}
"""The options of each kind; see `docs/explore.md`."""
_EXACT_ROLES: Mapping[str, tuple[str, ...]] = {
    "psrl": ("sampler", "policy", "updater"),
    "ids": ("estimator", "updater"),
}


@dataclass(frozen=True)
class LlmAgent:
    """What such a string says."""

    kind: str
    model: str
    """`provider:model`, or `EXACT`."""
    options: Mapping[str, str]

    @property
    def takes_temperature(self) -> bool:
        """Whether a language model's sampling is what explores: the sampler's of PSRL, else the policy's."""
        # IDS draws its actions itself, from what it was told of each.
        return self.kind != "ids" and "sampler" not in self._exact

    def make(self, task: Task, horizon: int, temperature: float | None = None) -> EpisodicAgent:
        """A fresh agent for one trial. Its luck comes from the episode's generator.

        Args:
            task: the first of the trial.
            horizon: steps of an episode.
            temperature: of the role that explores; None: as that of the others.

        Raises:
            ConfigurationError: an option makes no sense, or the model cannot be made.
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
        """The roles that no model plays."""
        roles = _EXACT_ROLES.get(self.kind, ())
        if self.model == EXACT:
            return roles
        named = tuple(self.options["exact"].split(",")) if "exact" in self.options else ()
        if unknown := [name for name in named if name not in roles]:
            raise ConfigurationError(f"{self.kind} has no role {unknown[0]!r}; it has {', '.join(roles)}")
        return named

    def _role(self, temperature: float | None = None) -> RoleModel:
        where = tuple((name, self.options[name]) for name in ("base_url", "key_env") if name in self.options)
        chosen = self._number("temperature") if temperature is None else temperature
        return RoleModel(_chat_model(self.model, where), chosen, timeout=self._number("timeout"))

    def _sampler(self, temperature: float | None) -> RoleModel:
        # An exact policy reads a value for each unknown, and nothing else; an exact updater keeps the prior's form.
        is_typed = {"policy", "updater"} <= set(self._exact)
        return replace(self._role(temperature), check=impossible if is_typed else None)

    def _memory(self, task: Task) -> InMemoryPosterior:
        if "prior" not in self.options:
            return InMemoryPosterior(str(exact_model(task).prior(task)))
        path = Path(self.options["prior"])
        try:
            return InMemoryPosterior(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"the prior {str(path)!r} cannot be read: {error}") from error

    def _caches(self, task: Task) -> bool:
        if "cache" not in self.options:
            return False
        if self.options["cache"] != "cave" or not isinstance(task.payload, RiverSwim):
            raise ConfigurationError(
                f"cache=cave keeps the policy's choice for each cave of a river, got cache={self.options['cache']} for "
                f"{task.id!r}"
            )
        return True

    def _number(self, option: str) -> float | None:
        if option not in self.options:
            return None
        try:
            found = float(self.options[option])
        except ValueError:
            found = math.nan
        if not (math.isfinite(found) and found >= 0):
            raise ConfigurationError(
                f"agent kind {self.kind!r}: {option} is a number, 0 or more, got {self.options[option]!r}"
            )
        return found


def llm_agent(agent: str) -> LlmAgent | None:
    """What a string says, or None where it is none of these agents.

    Raises:
        ConfigurationError: it is, and its model or an option is missing or unknown.
    """
    kind, _, rest = agent.partition(":")
    if kind not in OPTIONS:
        return None
    model, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if not model or (model == EXACT and kind not in _EXACT_ROLES):
        raise ConfigurationError(f"agent {agent!r} names no model: expected {kind}:provider:model")
    if unknown := [name for name in options if name not in OPTIONS[kind]]:
        raise ConfigurationError(f"agent kind {kind!r} has no option {unknown[0]!r}; it has {', '.join(OPTIONS[kind])}")
    return LlmAgent(kind, model, options)


@lru_cache(maxsize=16)
def _chat_model(name: str, where: tuple[tuple[str, str], ...]) -> BaseChatModel:
    """One client for all trials of a process."""
    options = dict(where)
    provider, _, folder = name.partition(":")
    if provider == "embedded":
        if options:
            raise ConfigurationError(f"{name!r} is asked in this process: leave out {', '.join(options)}")
        model_folder(folder)
        return EmbeddedChatModel(model=folder)
    if "key_env" in options:
        options["api_key"] = key_of(f"agent with {name!r}", options.pop("key_env"))
    return build_model(name, **options)


def _cave(trajectory: Trajectory) -> int:
    """Where in a river a trajectory has led to."""
    told = (read_swum(step.observation) for step in reversed(trajectory.steps))
    return next((swum.arrived for swum in told if swum is not None), 1)
