import pytest

pytest.importorskip("scienceworld", reason="the package scienceworld is not installed")

from amc_agents_scienceworld import Progress
from amc_agents_scienceworld.critic import from_spec

from amc_agents.errors import CriticSpecError
from amc_agents.testing import check_critic
from amc_agents.types import Step, Task, Trajectory

REFUSED = "No known action matches that input."


def state(*observations, reward=0.5):
    steps = tuple(Step("go", text) for text in observations)
    return Trajectory(Task("t", "i"), (Step("open door", "The door is now open.", reward=reward), *steps))


async def test_the_score_counts_less_the_more_of_the_newest_actions_were_refused():
    values = await Progress().values(
        [
            state(),
            state("You move.", REFUSED, "You move."),
            state("Ambiguous request: Please enter the number", REFUSED, REFUSED, REFUSED),
            state(REFUSED, *["You move."] * 4),
            state(reward=-1.0),
        ]
    )
    assert values == pytest.approx([0.5, 0.375, 0.0, 0.5, 0.0])


async def test_the_string_makes_the_critic_and_takes_nothing_else():
    await check_critic(from_spec("", {}), [state(), state(REFUSED)])
    with pytest.raises(CriticSpecError, match="takes neither target nor options"):
        from_spec("boil", {})
