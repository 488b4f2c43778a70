"""Exact roles for worlds with a conjugate model: they parse the posterior's text and follow Bayes' rule.

With all three exact roles, LLM-PSRL is classic PSRL over a textual posterior, which is Thompson sampling on a bandit. A
single exact role isolates a language model's performance in the other roles.
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
from amc_agents.quoting import excerpt, quoted
from amc_agents.types import Step, Trajectory


class ExactSampler:
    """Draws from a posterior that is the text of a typed prior."""

    async def sample(self, world: str, posterior: str, rng: np.random.Generator) -> str:
        """Draw a hypothesis. Raises `ConfigurationError` for a posterior of another form."""
        return hypothesis_text(parse_prior(posterior).sample(rng))


class ExactPolicy:
    """Acts optimally under a hypothesis in the form of `hypothesis_text`.

    Args:
        model: exact model of the world.
    """

    def __init__(self, model: ExactModel[Any]) -> None:
        self._model = model
        self._planned: tuple[str, Any] = "", None

    async def act(self, world: str, hypothesis: str, trajectory: Trajectory) -> Step:
        """Return the optimal action under the hypothesis."""
        if self._planned[0] != hypothesis:
            self._planned = hypothesis, self._model.policy(trajectory.task, read_hypothesis(hypothesis))
        return Step(self._planned[1](trajectory))


class ExactUpdater:
    """Applies Bayes' rule to a posterior that is the text of a typed prior.

    Args:
        model: exact model of the world.
    """

    def __init__(self, model: ExactModel[Any]) -> None:
        self._model = model

    async def update(self, world: str, posterior: str, experience: str, must_keep: Sequence[str] = ()) -> str:
        """Return the new posterior. Raises `ConfigurationError` for a posterior of another form."""
        typed: Any = parse_prior(posterior)
        for step in read_experience(experience):
            typed = self._model.updated(typed, step)
        return str(typed)


def hypothesis_text(hypothesis: Any) -> str:
    """Format a draw of a typed prior as text, without loss.

    >>> print(hypothesis_text({"mean of arm A": 0.25}))
    {
     "mean of arm A": 0.25
    }
    """
    return hypothesis if isinstance(hypothesis, str) else json.dumps(hypothesis, indent=1, ensure_ascii=False)


def read_hypothesis(text: str) -> Any:
    """Parse the text of `hypothesis_text`.

    Raises:
        ConfigurationError: the text looks like a JSON object but cannot be parsed.
    """
    if not text.startswith("{"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"expected a hypothesis as a JSON object, got {quoted(text, 120)}: {excerpt(str(error), 120)}"
        ) from error


def impossible(posterior: str, hypothesis: str) -> str:
    """Return why a hypothesis is impossible under a typed prior's text; empty if it is possible. A sampler's `Check`.

    >>> impossible("Uniform over {12, 21}", "13")
    "'13' is not among the 2 possible items"
    """
    try:
        prior, drawn = parse_prior(posterior), read_hypothesis(hypothesis)
    except ConfigurationError as error:
        return str(error)
    if not isinstance(prior, Independent):
        return _impossible(prior, drawn if isinstance(prior, UniformOver | Dirichlet) else _as_number(drawn))
    if not isinstance(drawn, dict) or set(drawn) != set(prior.parts):
        return f"expected a value for each of {', '.join(prior.parts)}"
    errors = {name: _impossible(part, drawn[name]) for name, part in prior.parts.items()}
    return "; ".join(f"{name}: {error}" for name, error in errors.items() if error)


def _impossible(prior: Single, drawn: Any) -> str:
    match prior:
        case UniformOver():
            return (
                ""
                if drawn in prior.items
                else f"{quoted(drawn, 200)} is not among the {len(prior.items)} possible items"
            )
        case Beta():
            return (
                ""
                if isinstance(drawn, int | float) and 0 <= drawn <= 1
                else f"{quoted(drawn, 200)} is not between 0 and 1"
            )
        case Dirichlet():
            known = isinstance(drawn, dict) and set(drawn) == set(prior.outcomes)
            numeric = known and all(isinstance(share, int | float) and 0 <= share <= 2 for share in drawn.values())
            if numeric and abs(sum(drawn.values()) - 1) < _ROUNDING:
                return ""
            return (
                f"{quoted(drawn, 200)} does not give each of {', '.join(prior.outcomes)} a probability, with a sum of 1"
            )


def _as_number(text: Any) -> Any:
    try:
        return float(text)
    except (TypeError, ValueError):
        return text


_ROUNDING = 1e-3
"""Tolerance for the sum of probabilities, which language models round."""
