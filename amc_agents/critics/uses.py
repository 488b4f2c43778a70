"""The kinds of critics that each method takes, and their conversions: `TABLE`, and functions that read it.

The nature of a critic follows from its methods and attributes (`nature_of`), so that your own objects are treated like
the library's critics. `table_markdown` writes the table for the documentation. LAC's conversions to log-odds follow the
table.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from amc_agents.critics.adapting import checked_values, connect, name_of, original
from amc_agents.critics.spec import UniformCritic
from amc_agents.errors import ConfigurationError, CriticError, UnreadableAnswer
from amc_agents.markdown import table
from amc_agents.settings import Beta
from amc_agents.types import ActionCritic, Critic, FloatArray, GoalCritic, Step, Trajectory


@dataclass(frozen=True)
class Use:
    """A method takes critics of a nature."""

    how: str
    """Description of the conversion of their answers."""


@dataclass(frozen=True)
class Refusal:
    """A method does not take critics of a nature."""

    why: str
    """A clause for the error message."""


METHODS = ("amc", "lac", "pnlc")

NATURES: Mapping[str, str] = MappingProxyType(
    {
        "uniform": "`uniform`",
        "value": "a value model (`embedded:`, `hf:`, `vllm:`, `calibrated:`)",
        "judge": "a judge (`judge:`, `foa:`, `classify:`, `openhands:`)",
        "verdict": "a verdict (`verdict:`)",
        "goal": "a goal critic (`goal:`), or an object with `reach`",
        "action": "an object with `q_values`",
        "object": "an object with `values`, or a function of trajectories",
    }
)
"""Nature of a critic -> its description for users."""


def nature_of(critic: Any) -> str:
    """Return the nature of a critic, a key of `NATURES`, by its methods and attributes.

    Args:
        critic: as `parse_critic` returns it.

    Raises:
        ConfigurationError: the object has no method of a critic.
    """
    if isinstance(critic, LogOdds):
        return "verdict"
    if isinstance(critic, GoalCritic):
        return "goal"
    if isinstance(critic, Critic):
        if isinstance(critic, UniformCritic):
            return "uniform"
        if _declares(critic, "returns"):
            return "judge"
        return "value" if _declares(critic, "predicts") else "object"
    if isinstance(critic, ActionCritic):
        return "action"
    raise ConfigurationError(
        f"expected a critic, got {type(critic).__name__}, which has none of the methods values, log_odds, q_values and "
        "reach"
    )


def use_of(method: str, critic: Any) -> Use:
    """Return how a method uses a critic.

    Args:
        method: one of `METHODS`.
        critic: any critic.

    Raises:
        ConfigurationError: the method does not take critics of this nature; the message says why and what it takes.
    """
    nature = nature_of(critic)
    cell = TABLE[method, nature]
    if isinstance(cell, Use):
        return cell
    accepted = [name for key, name in NATURES.items() if isinstance(TABLE[method, key], Use)]
    raise ConfigurationError(
        f"{method} does not take {NATURES[nature]} (here {name_of(critic)}): {cell.why}. It takes {'; '.join(accepted)}"
    )


def for_amc(critic: Any, *, beta: Beta, success_reward: float | None = None) -> Critic:
    """Fit a critic to AMC, which needs values in reward units.

    Args:
        critic: any critic.
        beta: the run's temperature of the target, in reward units; "auto" accepts that of an eq. 5 model.
        success_reward: the only return besides 0, where the run computes eq. 5's value from the critic's mean.

    Raises:
        ConfigurationError: AMC does not take the critic, or the critic is an eq. 5 model and the run has another beta
            or a `success_reward`. If only its server can tell, the error is raised on connection.
    """
    use_of("amc", critic)
    if not isinstance(critic, Critic):
        raise ConfigurationError(f"amc needs `values`, and {name_of(critic)} has log_odds alone")
    try:
        require_beta(critic, beta, success_reward)
    except CriticError:  # not connected yet
        return _BetaChecked(critic, beta, success_reward)
    return critic


def for_lac(critic: Any, *, returns: tuple[float, float] = (0.0, 1.0)) -> LogOdds:
    """Fit a critic to LAC, which needs log-odds of the trajectories that end with the candidate actions.

    Args:
        critic: any critic.
        returns: the returns of failure and success, in reward units, between which a value becomes a probability; a
            judge has its own.

    Raises:
        ConfigurationError: LAC does not take the critic, or `returns` are not in order.
    """
    use_of("lac", critic)
    nature = nature_of(critic)
    if nature == "verdict":
        verdict: LogOdds = critic
        return verdict
    if nature == "uniform":
        return NoOdds()
    if nature == "action":
        return OddsOfLastAction(critic)
    return OddsOfValue(critic, critic.returns if nature == "judge" else returns)


def for_pnlc(critic: Any) -> GoalCritic:
    """Check that a critic fits PNLC, which needs the likelihood of reaching each goal.

    Raises:
        ConfigurationError: PNLC does not take the critic.
    """
    use_of("pnlc", critic)
    goal_critic: GoalCritic = critic
    return goal_critic


def table_markdown() -> str:
    """Return the table as Markdown: a row per nature, a column per method."""
    rows = []
    for nature, name in NATURES.items():
        cells = (TABLE[method, nature] for method in METHODS)
        rows.append([name, *(cell.how if isinstance(cell, Use) else f"refused: {cell.why}" for cell in cells)])
    headings = ["critic", *(f"`{method}`" for method in METHODS)]
    return table(headings, rows, "l" * len(headings)) + "\n"


class _BetaChecked:
    """A critic that is not connected yet: its beta is checked as soon as it is known."""

    def __init__(self, critic: Any, beta: Beta, success_reward: float | None) -> None:
        self._critic, self._beta, self._success_reward = critic, beta, success_reward

    @property
    def predicts(self) -> str:
        predicts: str = self._critic.predicts
        return predicts

    async def connect(self) -> None:
        await connect(self._critic)
        require_beta(self._critic, self._beta, self._success_reward)

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        values: FloatArray = await self._critic.values(trajectories)
        if len(trajectories):
            require_beta(self._critic, self._beta, self._success_reward)
        return values

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # `copy` looks these up before the instance is filled
            raise AttributeError(name)
        return getattr(self._critic, name)


def _declares(critic: Any, attribute: str) -> bool:
    # `hasattr` would run a property, which fails while a server's critic does not know its value.
    return inspect.getattr_static(original(critic), attribute, None) is not None


def require_beta(critic: Any, beta: Beta, success_reward: float | None) -> None:
    """Check that a run's beta is the one for which a critic was trained, if it was trained for one (eq. 5).

    Raises:
        ConfigurationError: it is another, or the run has a `success_reward`.
        CriticError: the critic is not connected yet.
    """
    trained: float | None = getattr(critic, "beta", None)
    if trained is None:
        return
    if success_reward is not None:
        raise ConfigurationError(
            f"the value model was trained by eq. 5 (beta {trained:g}), and with success_reward the run computes that "
            "value from a mean: leave success_reward out, or use a model trained by eq. 7 or binary cross-entropy"
        )
    if beta != "auto" and not math.isclose(trained, beta, rel_tol=1e-6):
        raise ConfigurationError(
            f"the value model was trained by eq. 5 for beta {trained:g} and the run has beta {beta:g}: give the run "
            f"beta={trained:g}, train the model for {beta:g}, or use a model trained by eq. 7, which holds for every "
            "beta"
        )


_NO_GOALS = "it values trajectories, and PNLC needs the likelihood of reaching each of several imagined goals"

_AMC: dict[str, Use | Refusal] = {
    "uniform": Use("f = 0: weights follow the observed rewards"),
    "value": Use(
        "unchanged, in reward units; a model of the whole return has the return so far subtracted where rewards are "
        "observed; a model trained by eq. 5 fits only a run with its beta"
    ),
    "judge": Use("its range mapped linearly to `low`..`high`: the whole return"),
    "verdict": Use("low + (high - low) x sigmoid(log-odds): the whole return"),
    "goal": Refusal("it values goals, not trajectories"),
    "action": Refusal("it values actions in a state, not trajectories"),
    "object": Use('unchanged: the return still to come, or the whole return if it sets `predicts = "return"`'),
}

_LAC: dict[str, Use | Refusal] = {
    "uniform": Use("Q = 0: the prior alone"),
    "value": Use(
        "Q = logit p with p = (value - low) / (high - low), where a value of the future has the return so far added; a "
        "model trained by eq. 5 is refused"
    ),
    "judge": Use("Q = logit p, where p is the position of its number in its range"),
    "verdict": Use("unchanged: log-odds of GOOD and BAD"),
    "goal": Refusal("it gives the likelihood of reaching goals, not the quality of an action"),
    "action": Use("Q of the last action; without rollouts (`depth=0`), which it cannot read"),
    "object": Use("as a value model"),
}

_PNLC: dict[str, Use | Refusal] = {
    "uniform": Refusal("it does not distinguish goals, so it would leave the method without effect"),
    "value": Refusal(_NO_GOALS),
    "judge": Refusal(_NO_GOALS),
    "verdict": Refusal(_NO_GOALS),
    "goal": Use("unchanged: the likelihood of reaching each goal, in [0, 1]"),
    "action": Refusal("it values actions, and PNLC needs the likelihood of reaching each of several imagined goals"),
    "object": Refusal(_NO_GOALS),
}

TABLE: Mapping[tuple[str, str], Use | Refusal] = MappingProxyType(
    {
        (method, nature): cell
        for method, cells in {"amc": _AMC, "lac": _LAC, "pnlc": _PNLC}.items()
        for nature, cell in cells.items()
    }
)
"""(method, nature) -> how the method uses such a critic, or why it refuses it."""


MARGIN = 1e-3
"""Distance that a probability made from a value keeps from 0 and 1, since a regression is no more certain (|Q| < 7)."""


@runtime_checkable
class LogOdds(Protocol):
    """Judges candidate actions by the trajectories that end with them: the critic that LAC calls."""

    async def log_odds(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """Return `[K]` Q = log p(GOOD) - log p(BAD) of each trajectory, in one batch."""
        ...


class Judgements(NamedTuple):
    """Q of trajectories, and the probabilities behind it."""

    q: FloatArray
    """`[N]` log-odds."""
    flagged: npt.NDArray[np.bool_]
    """`[N]` True where Q is a bound or a substitute."""
    p_good: FloatArray | None = None
    """`[N]` probability of the word for success; None: the critic reads no words."""
    p_bad: FloatArray | None = None
    """`[N]` probability of the word for failure; other words have the rest."""


@runtime_checkable
class ExplainedLogOdds(LogOdds, Protocol):
    """A critic that also returns the probabilities behind its log-odds, and flags unreliable ones."""

    async def judgements(self, trajectories: Sequence[Trajectory]) -> Judgements:
        """Return `[N]` judgements, in one batch."""
        ...


class NoOdds:
    """Q = 0: all actions are equally good."""

    async def log_odds(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """Return `[K]` zeros."""
        return np.zeros(len(trajectories))


class OddsOfValue:
    """Q = logit p, where p is the position of the whole return between failure (0) and success (1).

    Args:
        critic: gives values in reward units; its `predicts` determines which return they predict.
        returns: the returns of failure and success.

    Raises:
        ConfigurationError: `returns` are not in order, or the critic is an eq. 5 model. If only its server can tell,
            `connect` and `log_odds` raise the error.
    """

    def __init__(self, critic: Any, returns: tuple[float, float]) -> None:
        low, high = returns
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigurationError(
                f"returns must be those of failure and success, in order, got {low:g} and {high:g}"
            )
        self._critic, self._low, self._high = critic, low, high
        try:
            self._refuse_soft_values()
        except CriticError:  # not connected to its server yet
            pass

    async def connect(self) -> None:
        """Connect the critic to its server, if it has one. Raises `ConfigurationError` for an eq. 5 model."""
        await connect(self._critic)
        self._refuse_soft_values()

    async def log_odds(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """Return `[K]` Q.

        Raises:
            UnreadableAnswer: some answers of a judge could not be read; it has the Q of the others.
        """
        unread = None
        try:
            answer = await self._critic.values(trajectories)
            values = checked_values(answer, len(trajectories), name_of(self._critic))
        except UnreadableAnswer as error:
            values, unread = error.values, error
        self._refuse_soft_values()
        if getattr(self._critic, "predicts", "future") == "future":
            # A finished trajectory has no future return, and a model of the future is not trained on final states.
            future = np.where([trajectory.done for trajectory in trajectories], 0.0, values)
            values = future + np.array([trajectory.return_ for trajectory in trajectories])
        p = np.clip((values - self._low) / (self._high - self._low), MARGIN, 1 - MARGIN)
        odds: FloatArray = np.log(p) - np.log1p(-p)
        if unread is not None:
            raise UnreadableAnswer(odds, unread.reason)
        return odds

    def _refuse_soft_values(self) -> None:
        if getattr(self._critic, "beta", None) is not None:
            raise ConfigurationError(
                "lac needs the expected return, and the values of this model, trained by eq. 5, are beta x "
                "log-mean-exp: train a model by eq. 7"
            )


class OddsOfLastAction:
    """Q(s, a) of the last action of each trajectory, from an `ActionCritic`; one batch per common past."""

    def __init__(self, critic: ActionCritic) -> None:
        self._critic = critic

    async def connect(self) -> None:
        """Connect the critic to its server, if it has one."""
        await connect(self._critic)

    async def log_odds(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """Return `[K]` Q."""
        odds = np.zeros(len(trajectories))
        for rows in _by_past(trajectories):
            first = trajectories[rows[0]]
            past = first.prefix(len(first.steps) - 1)
            actions = [trajectories[row].steps[-1].action for row in rows]
            answer = await self._critic.q_values(past, actions)
            odds[rows] = checked_values(answer, len(rows), name_of(self._critic))
        return odds


def _by_past(trajectories: Sequence[Trajectory]) -> list[list[int]]:
    """Group the trajectories, by index, that share all but their last step."""
    rows: dict[tuple[int, tuple[Step, ...]], list[int]] = {}
    for row, trajectory in enumerate(trajectories):
        if not trajectory.steps:
            raise CriticError(f"trajectory {row} has no step, so it has no action to judge")
        # The task's id is the key, since a task's payload need not be hashable.
        rows.setdefault((id(trajectory.task), trajectory.steps[:-1]), []).append(row)
    return list(rows.values())
