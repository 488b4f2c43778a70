"""The three roles where a conjugate model exists: they read the posterior's text and do exactly what Bayes' rule says.

With all three, LLM-PSRL is classic PSRL (on a bandit: Thompson sampling) over a posterior that is text; with one of
them, the other roles of a language model can be looked at alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from amc_agents.errors import ConfigurationError
from amc_agents.psrl.exact.model import ExactModel
from amc_agents.psrl.exact.priors import Beta, Dirichlet, Independent, Single, UniformOver, parse_prior
from amc_agents.psrl.experience import read_experience
from amc_agents.types import Step, Trajectory


class ExactSampler:
    """Draws from a posterior that is a typed prior's text."""

    async def sample(self, world: str, posterior: str, rng: np.random.Generator) -> str:
        """See `amc_agents.psrl.roles.Sampler`. Raises `ConfigurationError` for another text."""
        return hypothesis_text(parse_prior(posterior).sample(rng))


class ExactPolicy:
    """Plans for a hypothesis that `hypothesis_text` has written.

    Args:
        model: of the world.
    """

    def __init__(self, model: ExactModel[Any]) -> None:
        self._model = model
        self._planned: tuple[str, Any] = "", None

    async def act(self, world: str, hypothesis: str, trajectory: Trajectory) -> Step:
        """See `amc_agents.psrl.roles.SamplePolicy`."""
        if self._planned[0] != hypothesis:
            self._planned = hypothesis, self._model.policy(trajectory.task, read_hypothesis(hypothesis))
        return Step(self._planned[1](trajectory))


class ExactUpdater:
    """Bayes' rule on a posterior that is a typed prior's text.

    Args:
        model: of the world.
    """

    def __init__(self, model: ExactModel[Any]) -> None:
        self._model = model

    async def update(self, world: str, posterior: str, experience: str, must_keep: Sequence[str] = ()) -> str:
        """See `amc_agents.psrl.roles.Updater`. Raises `ConfigurationError` for a posterior of another form."""
        found: Any = parse_prior(posterior)
        for step in read_experience(experience):
            found = self._model.updated(found, step)
        return str(found)


def hypothesis_text(hypothesis: Any) -> str:
    """What a typed prior has drawn, as text without any loss.

    >>> print(hypothesis_text({"mean of arm A": 0.25}))
    {
     "mean of arm A": 0.25
    }
    """
    return hypothesis if isinstance(hypothesis, str) else json.dumps(hypothesis, indent=1, ensure_ascii=False)


def read_hypothesis(text: str) -> Any:
    """What `hypothesis_text` was given.

    Raises:
        ConfigurationError: the text looks like a table and is none.
    """
    if not text.startswith("{"):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"expected a hypothesis as a JSON object, got {text[:120]!r}: {error}") from error


def impossible(posterior: str, hypothesis: str) -> str:
    """What is wrong with a hypothesis under a typed prior's text; empty where it may be true. A `Check` of a sampler.

    >>> impossible("Uniform over {12, 21}", "13")
    "'13' is not one of the 2 that are possible"
    """
    try:
        prior, said = parse_prior(posterior), read_hypothesis(hypothesis)
    except ConfigurationError as error:
        return str(error)
    if not isinstance(prior, Independent):
        return _impossible(prior, said if isinstance(prior, UniformOver | Dirichlet) else _as_number(said))
    if not isinstance(said, dict) or set(said) != set(prior.parts):
        return f"expected a value for each of {', '.join(prior.parts)}"
    wrong = {name: _impossible(part, said[name]) for name, part in prior.parts.items()}
    return "; ".join(f"{name}: {one}" for name, one in wrong.items() if one)


def _impossible(prior: Single, said: Any) -> str:
    match prior:
        case UniformOver():
            return "" if said in prior.items else f"{said!r} is not one of the {len(prior.items)} that are possible"
        case Beta():
            return "" if isinstance(said, int | float) and 0 <= said <= 1 else f"{said!r} is not between 0 and 1"
        case Dirichlet():
            known = isinstance(said, dict) and set(said) == set(prior.outcomes)
            if known and min(said.values()) >= 0 and abs(sum(said.values()) - 1) < _ROUNDING:
                return ""
            return f"{said!r} does not give each of {', '.join(prior.outcomes)} a chance, of 1 in all"


def _as_number(text: Any) -> Any:
    try:
        return float(text)
    except (TypeError, ValueError):
        return text


_ROUNDING = 1e-3
"""Language models round."""
