"""A chat model that plays every role of PSRL and IDS exactly, given only the prompt and the world's public rules.

With this model LLM-PSRL must equal classic PSRL, action for action, which tests the content of the prompts and the
parsing of answers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from langchain_core.messages import BaseMessage

from amc_agents.models.seeding import particle_rng
from amc_agents.psrl.estimates import GAIN_IS, REGRET_IS
from amc_agents.psrl.exact import exact_model
from amc_agents.psrl.exact.model import ExactModel, Stakes
from amc_agents.psrl.exact.priors import parse_prior
from amc_agents.psrl.exact.roles import hypothesis_text, read_hypothesis
from amc_agents.psrl.experience import read_experience
from amc_agents.psrl.roles import ACTION, HYPOTHESIS, POSTERIOR
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.types import Task, Trajectory


def exact_roles_model(task: Task) -> ScriptedChatModel:
    """Create the model for a task of `amc_agents.envs.exploration`. It requires the library's prompts.

    Draws come from the generator of `amc_agents.models.seeding`, or from fresh entropy without such a generator.
    """
    return ScriptedChatModel(respond=_ExactRoles(task))


class _ExactRoles:
    def __init__(self, task: Task) -> None:
        self._task = task
        self._model: ExactModel[Any] = exact_model(task)
        self._stakes = lru_cache(maxsize=64)(self._computed_stakes)
        self._policy = lru_cache(maxsize=64)(self._planned)

    def __call__(self, messages: Sequence[BaseMessage]) -> str:
        prompt = messages[-1].text
        fields = {tag: text for tag, text in _TAGGED.findall(prompt)}
        if prompt.endswith(_ASKS_FOR_NUMBER[REGRET_IS]):
            stakes = self._stakes(fields["posterior"], fields["episode"])
            return f"{REGRET_IS} {float(stakes.regrets[stakes.actions.index(fields['action'])])!r}"
        if prompt.endswith(_ASKS_FOR_NUMBER[GAIN_IS]):
            stakes = self._stakes(fields["posterior"], fields["episode"])
            return f"{GAIN_IS} {float(stakes.gains[stakes.actions.index(fields['action'])])!r}"
        if "hypothesis" in fields:
            policy = self._policy(fields["hypothesis"])
            return f"{ACTION} {policy(Trajectory(self._task, read_experience(fields['episode'])))}"
        if "experience" in fields:
            posterior: Any = parse_prior(fields["posterior"])
            for step in read_experience(fields["experience"]):
                posterior = self._model.updated(posterior, step)
            return f"{POSTERIOR}\n{posterior}"
        rng = particle_rng() or np.random.default_rng()
        return f"{HYPOTHESIS}\n{hypothesis_text(parse_prior(fields['posterior']).sample(rng))}"

    def _computed_stakes(self, posterior: str, episode: str) -> Stakes:
        informed: Any = self._model
        stakes: Stakes = informed.stakes(parse_prior(posterior), Trajectory(self._task, read_experience(episode)))
        return stakes

    def _planned(self, hypothesis: str) -> Any:
        return self._model.policy(self._task, read_hypothesis(hypothesis))


_TAGGED = re.compile(r"^<(\w+)>\n(.*?)\n</\1>(?: \w+)?$", re.MULTILINE | re.DOTALL)
_ASKS_FOR_NUMBER = {mark: f"{mark} <number>" for mark in (REGRET_IS, GAIN_IS)}
