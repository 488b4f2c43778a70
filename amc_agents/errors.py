"""Every error that the library raises on purpose.

    AmcError
    ├── ConfigurationError          a setting is wrong or missing; also a ValueError
    │   └── CriticSpecError         a critic's string was not understood
    ├── WorldError                  the world (our instrument) is broken
    │   ├── EnvironmentStateError   step before reset, or after the end
    │   └── ForkError               the world cannot be forked truthfully
    │       └── ReplayDivergence    a replayed observation differs from the record
    ├── CriticError                 the critic failed, or answered nonsense
    │   └── CriticServerError       its server could not be reached, or refused
    ├── PopulationError             the particle system cannot go on
    │   ├── AllWeightsZero          no particle has any weight left
    │   ├── QuorumLost              too many particles failed
    │   └── RunTimedOut             no particle finished within run_timeout
    ├── TimeLimitExceeded           a step or a critic took longer than allowed; also a TimeoutError
    ├── AgentContractError          the wrapped agent cannot be run as particles
    ├── DecisionError               no candidate is left to choose from
    ├── RoleError                   a language model in a role failed, or did not answer in the form asked for
    ├── PosteriorError              a posterior is missing or damaged, or was edited meanwhile
    │   └── UpdateError             an update failed or was refused; the posterior is as it was
    ├── ServerError                 a model server of ours did not start, or died
    ├── CheckpointError             a saved model or dataset is not what was expected
    ├── StorageError                a file could not be written; also an OSError
    └── MissingExtra                an optional dependency is not installed; also an ImportError

An agent's mistake is never here: it is an observation. These say that an instrument failed.
Each error stores its facts and builds its sentence: what was expected, what came, what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from amc_agents.quoting import excerpt

if TYPE_CHECKING:
    from amc_agents.types import Trajectory


def brief_causes(causes: Sequence[BaseException]) -> str:
    """The first two different causes, each on a line of at most 110 characters, for a message."""
    different = list(dict.fromkeys(f"{type(cause).__name__}: {cause}" for cause in causes))
    more = f"; and {len(different) - 2} others" if len(different) > 2 else ""
    return "; ".join(excerpt(cause, 110) for cause in different[:2]) + more


class AmcError(Exception):
    """Base of every error that the library raises on purpose."""


class ConfigurationError(AmcError, ValueError):
    """A setting is wrong or missing."""


class CriticSpecError(ConfigurationError):
    """A critic's string was not understood."""


class WorldError(AmcError):
    """The world, which is our instrument, is broken."""


class EnvironmentStateError(WorldError):
    """The world was used out of order: a step before reset, or after the end."""


class ForkError(WorldError):
    """The world cannot be forked truthfully."""


class ReplayDivergence(ForkError):
    """A replayed action gave another observation than the one on record.

    Args:
        step: 1-based number of the diverging step (0: the first observation).
        action: the action replayed (empty for the first observation).
        expected: the observation on record.
        actual: the observation of the replay.
    """

    def __init__(self, step: int, action: str, expected: str, actual: str) -> None:
        self.step, self.action, self.expected, self.actual = step, action, expected, actual
        what = f"action {action!r}" if step else "the first observation"
        super().__init__(
            f"replay diverged at step {step} ({what}): expected {expected!r}, got {actual!r}. "
            "The world is not deterministic given its seed and actions; give it a fork of its own."
        )


class CriticError(AmcError):
    """A critic failed, or answered with the wrong shape, NaN or infinity."""


class PromptTooLong(CriticError):
    """The task and one round alone are longer than a critic reads."""


class CriticServerError(CriticError):
    """A critic's server could not be reached, or refused the request.

    Args:
        url: what was asked.
        reason: what came, and what to do.
        status: the HTTP status, None where there was no answer.
    """

    def __init__(self, url: str, reason: str, status: int | None = None) -> None:
        self.url, self.reason, self.status = url, reason, status
        super().__init__(f"{url}: {reason}")


class PopulationError(AmcError):
    """The particle system cannot go on."""


class AllWeightsZero(PopulationError):
    """No particle has any weight left, so nothing can be resampled or selected."""

    def __init__(self, n_particles: int, where: str) -> None:
        self.n_particles, self.where = n_particles, where
        super().__init__(
            f"all {n_particles} particles have weight 0 at {where}: every one failed, or got a potential of "
            "-inf. Look at the particles' causes, and at the critic's and the reward's range."
        )


class QuorumLost(PopulationError):
    """Too many particles failed for the run to mean anything.

    Args:
        alive: particles that still live.
        quorum: the least number that the run was asked to keep.
        causes: what ended each lost particle.
    """

    def __init__(self, alive: int, quorum: int, causes: Sequence[BaseException]) -> None:
        self.alive, self.quorum, self.causes = alive, quorum, tuple(causes)
        super().__init__(
            f"only {alive} particles are alive and the quorum is {quorum}. Causes: {brief_causes(causes)}. "
            "Remove the cause, or lower `quorum`; `causes` has all of them."
        )


class RunTimedOut(PopulationError, TimeoutError):
    """The time of a run was over before any particle had finished.

    Args:
        limit_s: the time allowed.
        trajectories: how far each particle got; empty where the worlds were not made yet.
    """

    def __init__(self, limit_s: float, trajectories: Sequence[Trajectory] = ()) -> None:
        self.limit_s, self.trajectories = limit_s, tuple(trajectories)
        steps = [len(trajectory.steps) for trajectory in trajectories]
        reached = (
            f"none of {len(steps)} particles had finished (most steps: {max(steps)})"
            if steps
            else ("the particles were not ready to start")
        )
        super().__init__(
            f"run_timeout={limit_s:g} s passed and {reached}. Allow more time or a shorter horizon, or set "
            "step_timeout if one step hangs"
        )


class TimeLimitExceeded(AmcError, TimeoutError):
    """Something took longer than its limit, and was cancelled.

    Args:
        what: took too long, and the setting that limits it.
        limit_s: the time allowed.
    """

    def __init__(self, what: str, limit_s: float) -> None:
        self.what, self.limit_s = what, limit_s
        super().__init__(f"{what}={limit_s:g} s: raise the limit, or look for what hangs")


class AgentContractError(AmcError):
    """The wrapped agent cannot be run as particles as it is; the message says what to declare."""


class DecisionError(AmcError):
    """A decision has no candidate left to choose from; the message says what became of them."""


class RoleError(AmcError):
    """A language model in one role of a method failed, refused, took too long, or answered in another form, twice.

    Args:
        role: which one.
        reason: what came, and what to do.
    """

    def __init__(self, role: str, reason: str) -> None:
        self.role, self.reason = role, reason
        super().__init__(reason)


class PosteriorError(AmcError):
    """A posterior is missing or damaged, or was edited by its owner elsewhere meanwhile."""


class UpdateError(PosteriorError):
    """An update failed or was refused. The posterior is as it was, and the evidence is kept as not applied.

    Args:
        number: of the version that is still the head.
        episode: where the evidence comes from.
        reason: what came.
    """

    def __init__(self, number: int, episode: str, reason: str) -> None:
        self.number, self.episode, self.reason = number, episode, reason
        super().__init__(
            f"the update of episode {episode!r} failed ({reason}). The posterior stays at version {number}, and the "
            "observation is kept as not applied: mend the cause, then call apply_pending."
        )


class ServerError(AmcError):
    """A model server that we started did not come up, or died.

    Args:
        url: where it was to answer.
        reason: what came, and what to do.
    """

    def __init__(self, url: str, reason: str) -> None:
        self.url, self.reason = url, reason
        super().__init__(f"{url}: {reason}")


class CheckpointError(AmcError):
    """A saved model, adapter or dataset is not what was expected."""


class StorageError(AmcError, OSError):
    """A file could not be written.

    Args:
        path: the file or folder.
        reason: the cause and the remedy.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"cannot write {path}: {reason}")


class MissingExtra(AmcError, ImportError):
    """An optional dependency is not installed.

    Args:
        package: the import that failed.
        extra: the extra that brings it.
    """

    def __init__(self, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(f"{package!r} is needed here and is not installed: pip install 'amc-agents[{extra}]'")
