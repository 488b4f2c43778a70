"""What happened, as text and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from amc_agents.psrl.roles import NOTHING, experience, read_experience
from amc_agents.types import Step

TEXTS = st.lists(st.sampled_from(["a", "b ", "\n", ":", "Step 2\n", "Action: ", "  ", "Reward: 1\n"]), max_size=8).map(
    "".join
)
STEPS = st.lists(
    st.builds(Step, TEXTS, TEXTS, reward=st.floats(allow_nan=False, allow_infinity=False)), min_size=1, max_size=4
)


@given(STEPS)
def test_whatever_the_world_says_is_read_back(steps):
    assert read_experience(f"Asked: Earn.\n\n{experience(steps, first=2)}") == tuple(steps)
    without = read_experience(experience(steps, rewards=False))
    assert [(step.action, step.observation) for step in without] == [(step.action, step.observation) for step in steps]


def test_thoughts_are_left_out():
    assert experience([Step("a", "b", thought="I believe.")], first=4) == "Step 5\nAction: a\nObservation: b\nReward: 0"
    assert experience([]) == NOTHING
    assert read_experience(NOTHING) == ()
