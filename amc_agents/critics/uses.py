"""Which method takes which kind of critic, converted how, or refused why: one table, and the functions that obey it.

A critic's nature is read off what it can do (`nature_of`), so that an object of yours is treated as the library's own
are. `table_markdown` writes the table for the documentation.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from amc_agents.critics.adapting import connect, name_of, original
from amc_agents.critics.log_odds import LogOdds, NoOdds, OddsOfLastAction, OddsOfValue
from amc_agents.critics.uniform import UniformCritic
from amc_agents.errors import ConfigurationError, CriticError
from amc_agents.markdown import table
from amc_agents.types import ActionCritic, Critic, FloatArray, GoalCritic, Trajectory


@dataclass(frozen=True)
class Use:
    """A method takes critics of a nature."""

    how: str
    """What it asks of them, and how the answer is converted."""


@dataclass(frozen=True)
class Refusal:
    """A method does not take critics of a nature."""

    why: str
    """A clause for the error message."""


METHODS = ("amc", "lac", "pnlc", "psrl", "ids")

NATURES: Mapping[str, str] = MappingProxyType(
    {
        "uniform": "`uniform`",
        "value": "a value model (`embedded:`, `hf:`, `vllm:`)",
        "judge": "a judge (`judge:`, `foa:`)",
        "verdict": "a verdict (`verdict:`)",
        "goal": "a goal critic (`goal:`), or an object with `reach`",
        "action": "an object with `q_values`",
        "object": "an object with `values`, or a function of trajectories",
    }
)
"""What a critic is by what it can do -> how people know it."""


def nature_of(critic: Any) -> str:
    """A critic's nature, one of `NATURES`, by its methods and attributes; as `parse_critic` gives it.

    Raises:
        ConfigurationError: it can do nothing that a critic does.
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
    """How a method uses a critic.

    Args:
        method: one of `METHODS`.
        critic: any critic.

    Raises:
        ConfigurationError: it does not take critics of that nature; the message says why, and which it takes.
    """
    nature = nature_of(critic)
    found = TABLE[method, nature]
    if isinstance(found, Use):
        return found
    taken = [name for key, name in NATURES.items() if isinstance(TABLE[method, key], Use)]
    instead = f"It takes {'; '.join(taken)}" if taken else "Leave the critic out"
    raise ConfigurationError(
        f"{method} does not take {NATURES[nature]} (here {name_of(critic)}): {found.why}. {instead}"
    )


def for_amc(critic: Any, *, beta: float, success_reward: float | None = None) -> Critic:
    """The critic as AMC asks it: values in reward units.

    Args:
        critic: any critic.
        beta: the run's temperature of the target, in reward units.
        success_reward: the one return besides 0, where the run makes eq. 5's value of the critic's mean itself.

    Raises:
        ConfigurationError: AMC does not take it, or it was trained by eq. 5 and the run has another beta, or
            a `success_reward`. Where a server has to be asked for that first, the error comes as it is connected.
    """
    use_of("amc", critic)
    if not isinstance(critic, Critic):
        raise ConfigurationError(f"amc asks for `values`, and {name_of(critic)} has log_odds alone")
    try:
        _require_beta(critic, beta, success_reward)
    except CriticError:  # not connected yet
        return _OfOneBeta(critic, beta, success_reward)
    return critic


def for_lac(critic: Any, *, returns: tuple[float, float] = (0.0, 1.0)) -> LogOdds:
    """The critic as LAC asks it: log-odds of the trajectories that end with the candidate actions.

    Args:
        critic: any critic.
        returns: the returns of failure and success, in reward units, between which a value is a probability; a judge
            brings its own.

    Raises:
        ConfigurationError: LAC does not take it, or `returns` are not in order.
    """
    use_of("lac", critic)
    nature = nature_of(critic)
    if nature == "verdict":
        found: LogOdds = critic
        return found
    if nature == "uniform":
        return NoOdds()
    if nature == "action":
        return OddsOfLastAction(critic)
    return OddsOfValue(critic, critic.returns if nature == "judge" else returns)


def for_pnlc(critic: Any) -> GoalCritic:
    """The critic as PNLC asks it: how likely each goal is reached.

    Raises:
        ConfigurationError: PNLC does not take it.
    """
    use_of("pnlc", critic)
    found: GoalCritic = critic
    return found


def table_markdown(methods: Sequence[str] = METHODS) -> str:
    """The table as Markdown: a row per nature, a column per method."""
    rows = []
    for nature, name in NATURES.items():
        cells = (TABLE[method, nature] for method in methods)
        rows.append([name, *(one.how if isinstance(one, Use) else f"refused: {one.why}" for one in cells)])
    headings = ["critic", *(f"`{method}`" for method in methods)]
    return table(headings, rows, "l" * len(headings)) + "\n"


class _OfOneBeta:
    """A critic behind a server that has not been asked yet: its beta is compared as soon as it is known."""

    def __init__(self, critic: Any, beta: float, success_reward: float | None) -> None:
        self._critic, self._beta, self._success_reward = critic, beta, success_reward

    @property
    def predicts(self) -> str:
        predicts: str = self._critic.predicts
        return predicts

    async def connect(self) -> None:
        await connect(self._critic)
        _require_beta(self._critic, self._beta, self._success_reward)

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        values: FloatArray = await self._critic.values(trajectories)
        if len(trajectories):
            _require_beta(self._critic, self._beta, self._success_reward)
        return values

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what copying asks of an object that is not filled yet
            raise AttributeError(name)
        return getattr(self._critic, name)


def _declares(critic: Any, attribute: str) -> bool:
    # Not `hasattr`, which would run a property, and a server's critic may not know its value yet.
    return inspect.getattr_static(original(critic), attribute, None) is not None


def _require_beta(critic: Any, beta: float, success_reward: float | None) -> None:
    own: float | None = getattr(critic, "beta", None)
    if own is None:
        return
    if success_reward is not None:
        raise ConfigurationError(
            f"the value model was trained by eq. 5 (beta {own:g}), and with success_reward the run makes eq. 5's value "
            "of a mean: leave success_reward out, or use a model trained by eq. 7 or binary cross-entropy"
        )
    if not math.isclose(own, beta, rel_tol=1e-6):
        raise ConfigurationError(
            f"the value model was trained by eq. 5 for beta {own:g} and the run has beta {beta:g}: give the run "
            f"beta={own:g}, train the model for {beta:g}, or use one trained by eq. 7, which holds for every beta"
        )


_NO_GOALS = "it values trajectories, and PNLC asks how likely each of several imagined goals is reached"

_AMC: dict[str, Use | Refusal] = {
    "uniform": Use("f = 0: weights follow the rewards seen"),
    "value": Use(
        "as it is, in reward units; one of the whole return has the return so far taken off where rewards are seen; "
        "one trained by eq. 5 with the run's beta only"
    ),
    "judge": Use("its range mapped linearly to `low`..`high`: the whole return"),
    "verdict": Use("low + (high - low) x sigmoid(log-odds): the whole return"),
    "goal": Refusal("it values goals, not trajectories"),
    "action": Refusal("it values actions of one state, not trajectories"),
    "object": Use('as it is: the return still to come, or the whole one where it says `predicts = "return"`'),
}

_LAC: dict[str, Use | Refusal] = {
    "uniform": Use("Q = 0: the prior alone"),
    "value": Use(
        "Q = logit p with p = (value - low) / (high - low), the return so far added to a value of what is to come; one "
        "trained by eq. 5 is refused"
    ),
    "judge": Use("Q = logit p, p its number between the ends of its range"),
    "verdict": Use("as it is: log-odds of GOOD and BAD"),
    "goal": Refusal("it says how likely goals are reached, not how good an action is"),
    "action": Use("Q of the last action; without rollouts (`depth=0`), which it could not see"),
    "object": Use("as a value model"),
}

_PNLC: dict[str, Use | Refusal] = {
    "uniform": Refusal("it knows nothing of goals, and nothing would be left of the method"),
    "value": Refusal(_NO_GOALS),
    "judge": Refusal(_NO_GOALS),
    "verdict": Refusal("it knows good from bad, and PNLC asks how likely each of several imagined goals is reached"),
    "goal": Use("as it is: how likely each goal is reached, in [0, 1]"),
    "action": Refusal("it values actions, and PNLC asks how likely each of several imagined goals is reached"),
    "object": Refusal(_NO_GOALS),
}

_PSRL: dict[str, Use | Refusal] = dict.fromkeys(
    NATURES, Refusal("it samples what may be true of the world and acts on it, without a critic")
)
_IDS: dict[str, Use | Refusal] = dict.fromkeys(
    NATURES, Refusal("it weighs regret against information, which the model itself estimates, without a critic")
)

TABLE: Mapping[tuple[str, str], Use | Refusal] = MappingProxyType(
    {
        (method, nature): cell
        for method, cells in {
            "amc": _AMC,
            "lac": _LAC,
            "pnlc": _PNLC,
            "psrl": _PSRL,
            "ids": _IDS,
        }.items()
        for nature, cell in cells.items()
    }
)
"""(method, nature) -> what becomes of such a critic there."""
