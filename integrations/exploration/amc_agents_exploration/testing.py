"""A chat model that plays every role of PSRL and IDS exactly in a world of this package, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from amc_agents.psrl.posterior.priors import hypothesis_text, parse_prior, read_hypothesis
from amc_agents.testing import ScriptedChatModel
from amc_agents.testing import exact_roles_model as model_of_functions
from amc_agents.types import Step, Task, Trajectory
from amc_agents_exploration.exact.known import exact_model


def exact_roles_model(task: Task) -> ScriptedChatModel:
    """Create the model for a task of `amc_agents_exploration.worlds`. It requires the library's prompts."""
    model: Any = exact_model(task)

    @lru_cache(maxsize=64)
    def plan(hypothesis: str) -> Any:
        return model.policy(task, read_hypothesis(hypothesis))

    @lru_cache(maxsize=64)
    def known_stakes(posterior: str, steps: tuple[Step, ...]) -> dict[str, tuple[float, float]]:
        actions, regrets, gains = model.stakes(parse_prior(posterior), Trajectory(task, steps))
        return dict(zip(actions, zip(regrets, gains, strict=True), strict=True))

    def policy(hypothesis: Any, steps: Sequence[Step]) -> str:
        action: str = plan(hypothesis_text(hypothesis))(Trajectory(task, tuple(steps)))
        return action

    def stakes(posterior: Any, steps: Sequence[Step]) -> dict[str, tuple[float, float]]:
        return known_stakes(str(posterior), tuple(steps))

    return model_of_functions(model.updated, policy=policy, stakes=stakes)
