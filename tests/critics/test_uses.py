import copy
import math
from typing import Any

import numpy as np
import pytest

from amc_agents.critics.judge.critic import JudgeCritic
from amc_agents.critics.spec import UniformCritic, parse_critic
from amc_agents.critics.uses import (
    MARGIN,
    METHODS,
    NATURES,
    TABLE,
    LogOdds,
    Refusal,
    Use,
    for_amc,
    for_lac,
    for_pnlc,
    nature_of,
    table_markdown,
    use_of,
)
from amc_agents.critics.value.local import EmbeddedCritic, shipped_folder
from amc_agents.errors import ConfigurationError, CriticError
from amc_agents.testing import ScriptedChatModel
from amc_agents.types import Step, Task, Trajectory

TASK = Task("t", "Climb.", payload={"unhashable": []})
EARNED = Trajectory(TASK, (Step("climb", "up", reward=0.25), Step("rest")))
OVER = Trajectory(TASK, (Step("climb", "up", reward=1.0),), done=True)
BOTH = [EARNED, OVER]


class Values:
    """A user's object that only returns numbers."""

    def __init__(self, *values, **attributes):
        self._values = values
        vars(self).update(attributes)

    async def values(self, trajectories):
        return np.array(self._values[: len(trajectories)], dtype=float)


class ValueModel(Values):
    predicts = "future"
    beta = None


class Verdict(Values):
    returns = (-1.0, 3.0)
    predicts = "return"

    async def log_odds(self, trajectories):
        return np.full(len(trajectories), 2.0)

    async def q_values(self, trajectory, actions):
        raise AssertionError("log-odds are asked for directly")


class Goals:
    async def reach(self, trajectory, thought, goals):
        return np.full(len(goals), 0.5)


class Actions:
    def __init__(self):
        self.asked = []

    async def q_values(self, trajectory, actions):
        self.asked.append((trajectory, list(actions)))
        return np.array([{"up": 1.0, "down": -1.0}[action] for action in actions])


def judge(answer="Score: 0.75", **settings):
    return JudgeCritic(ScriptedChatModel(respond=lambda messages: answer), **settings)


CRITICS: dict[str, Any] = {
    "uniform": UniformCritic,
    "value": lambda: ValueModel(0.5, 0.9),
    "judge": judge,
    "verdict": lambda: Verdict(0.1, 0.2),
    "goal": Goals,
    "action": Actions,
    "object": lambda: Values(0.5, 0.9),
}


def logit(p):
    return math.log(p / (1 - p))


# --- natures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nature", NATURES)
def test_the_nature_follows_from_the_methods(nature):
    assert nature_of(CRITICS[nature]()) == nature


def test_the_librarys_own_critics_have_their_nature():
    assert nature_of(EmbeddedCritic(shipped_folder("crafting"))) == "value"
    assert nature_of(parse_critic("uniform")) == "uniform"


def test_an_object_without_a_critics_methods_is_refused():
    with pytest.raises(ConfigurationError, match="got int, which has none of the methods values, log_odds"):
        nature_of(5)


# --- the table -----------------------------------------------------------------------------------------------------

TAKEN = {
    "amc": {"uniform", "value", "judge", "verdict", "object"},
    "lac": {"uniform", "value", "judge", "verdict", "action", "object"},
    "pnlc": {"goal"},
}
CELLS = [(method, nature) for method in METHODS for nature in NATURES]
MAKE: dict[str, Any] = {
    "amc": lambda critic: for_amc(critic, beta=1.0),
    "lac": for_lac,
    "pnlc": for_pnlc,
}


def test_the_table_has_every_cell_and_no_other():
    assert set(TABLE) == set(CELLS)
    assert set(CRITICS) == set(NATURES)


@pytest.mark.parametrize(("method", "nature"), CELLS)
async def test_every_cell_describes_the_behaviour(method, nature):
    critic = CRITICS[nature]()
    if nature in TAKEN[method]:
        assert isinstance(TABLE[method, nature], Use)
        assert use_of(method, critic) is TABLE[method, nature]
        made = MAKE[method](critic)
        if method == "pnlc":
            answer = await made.reach(EARNED, "", ["a", "b"])
        elif method == "lac":
            assert isinstance(made, LogOdds)
            answer = await made.log_odds([EARNED, EARNED] if nature != "action" else [moved("up"), moved("down")])
        else:
            answer = await made.values(BOTH)
        assert answer.shape == (2,)
        assert np.isfinite(answer).all()
    else:
        refusal = TABLE[method, nature]
        assert isinstance(refusal, Refusal)
        with pytest.raises(ConfigurationError) as caught:
            MAKE[method](critic)
        message = str(caught.value)
        assert message.startswith(f"{method} does not take {NATURES[nature]} (here {type(critic).__name__}): ")
        assert refusal.why in message
        for other, name in NATURES.items():
            assert (f"{name};" in f"{message};".partition("It takes")[2]) == (other in TAKEN[method])


def test_the_markdown_shows_every_cell():
    lines = table_markdown().splitlines()
    assert len(lines) == 2 + len(NATURES)
    assert all(line.count(" | ") == len(METHODS) for line in lines)
    for nature, line in zip(NATURES, lines[2:], strict=True):
        for method in METHODS:
            cell = TABLE[method, nature]
            assert (cell.how if isinstance(cell, Use) else f"refused: {cell.why}") in line


# --- amc -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nature", sorted(TAKEN["amc"]))
def test_amc_gets_the_critic_itself(nature):
    critic = CRITICS[nature]()
    assert for_amc(critic, beta=1.0) is critic


async def test_amc_gets_a_judges_number_in_reward_units():
    critic: Any = for_amc(judge(returns=(-1.0, 3.0)), beta=1.0)
    assert (await critic.values([EARNED])).tolist() == [2.0]
    assert critic.predicts == "return"


def test_an_eq_5_model_is_for_its_own_beta():
    critic = ValueModel(1.0, beta=0.3)
    assert for_amc(critic, beta=0.1 + 0.2) is critic
    with pytest.raises(ConfigurationError, match=r"for beta 0\.3 and the run has beta 1: give the run beta=0\.3"):
        for_amc(critic, beta=1.0)


def test_a_run_with_success_reward_refuses_an_eq_5_model():
    with pytest.raises(ConfigurationError, match="leave success_reward out, or use a model"):
        for_amc(ValueModel(1.0, beta=0.3), beta=0.3, success_reward=1.0)
    plain = ValueModel(1.0)
    assert for_amc(plain, beta=0.3, success_reward=1.0) is plain


class Unconnected(Values):
    """Like a critic behind a server, whose attributes are known after the first answer."""

    known = False

    @property
    def predicts(self):
        return self._tell("return")

    @property
    def beta(self):
        return self._tell(0.3)

    def _tell(self, fact):
        if not self.known:
            raise CriticError("await connect()")
        return fact

    async def values(self, trajectories):
        self.known = True
        return await super().values(trajectories)


async def test_the_beta_of_an_unconnected_server_is_compared_at_its_first_answer():
    fits: Any = for_amc(Unconnected(0.5), beta=0.3)
    assert (await fits.values([EARNED])).tolist() == [0.5]
    assert (fits.predicts, fits.known, nature_of(fits)) == ("return", True, "value")
    assert copy.copy(fits).known
    other = for_amc(Unconnected(0.5), beta=1.0)
    with pytest.raises(ConfigurationError, match=r"beta 0\.3 and the run has beta 1"):
        await other.values([EARNED])


def test_amc_needs_values_of_a_verdict():
    class OnlyOdds:
        log_odds = Verdict.log_odds

    with pytest.raises(ConfigurationError, match="OnlyOdds has log_odds alone"):
        for_amc(OnlyOdds(), beta=1.0)


# --- lac -----------------------------------------------------------------------------------------------------------


async def test_lac_takes_a_verdict_as_it_is():
    critic = Verdict()
    assert for_lac(critic) is critic
    assert (await for_lac(UniformCritic()).log_odds(BOTH)).tolist() == [0.0, 0.0]


async def test_lac_adds_the_return_so_far_to_a_future_value():
    # 0.25 earned and 0.5 to come; a finished trajectory has no future return, whatever the model answers.
    odds = await for_lac(ValueModel(0.5, 0.9), returns=(0.0, 2.0)).log_odds([EARNED, OVER])
    assert odds.tolist() == pytest.approx([logit(0.375), logit(0.5)])


async def test_lac_uses_a_whole_return_unchanged():
    critic = Values(0.5, 1.5, predicts="return")
    odds = await for_lac(critic, returns=(-1.0, 2.0)).log_odds([EARNED, OVER])
    assert odds.tolist() == pytest.approx([logit(1.5 / 3), logit(2.5 / 3)])


async def test_lac_uses_the_position_of_a_judges_number_in_its_range():
    odds = await for_lac(judge(returns=(-5.0, 10.0)), returns=(0.0, 1.0)).log_odds([EARNED])
    assert odds.tolist() == pytest.approx([logit(0.75)])


async def test_lac_keeps_probabilities_away_from_certainty():
    critic = Values(-3.0, 7.0, predicts="return")
    odds = await for_lac(critic).log_odds(BOTH)
    assert odds.tolist() == pytest.approx([logit(MARGIN), -logit(MARGIN)])


async def test_lac_batches_the_last_actions_of_a_common_past():
    critic = Actions()
    odds = await for_lac(critic).log_odds([moved("up"), moved("down", past=1), moved("down")])
    assert odds.tolist() == [1.0, -1.0, -1.0]
    assert critic.asked == [(Trajectory(TASK), ["up", "down"]), (Trajectory(TASK, (Step("wait"),)), ["down"])]
    with pytest.raises(CriticError, match="trajectory 0 has no step"):
        await for_lac(critic).log_odds([Trajectory(TASK)])


async def test_lac_refuses_eq_5_as_soon_as_it_is_known():
    critic = ValueModel(1.0, beta=0.3)
    with pytest.raises(ConfigurationError, match=r"trained by eq\. 5, are beta x log-mean-exp"):
        for_lac(critic)
    later = for_lac(Unconnected(0.5))
    with pytest.raises(ConfigurationError, match=r"trained by eq\. 5"):
        await later.log_odds([EARNED])


async def test_lac_refuses_invalid_answers():
    with pytest.raises(CriticError, match="answered nan for trajectory 0"):
        await for_lac(Values(math.nan)).log_odds([EARNED])
    with pytest.raises(ConfigurationError, match="failure and success, in order, got 1 and 0"):
        for_lac(Values(0.5), returns=(1.0, 0.0))


def moved(action, past=0):
    return Trajectory(TASK, (*[Step("wait")] * past, Step(action, "imagined")))


def test_the_page_on_critics_has_the_table(repository):
    assert table_markdown() in (repository / "docs/critics.md").read_text()
