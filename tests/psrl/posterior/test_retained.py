from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amc_agents.psrl.posterior.retained import dropped_statements

ARMS = "Arm 1: Beta(2, 1)\nArm 2: Beta(1, 1)\nArm 3: Beta(1, 1)"
SWIM = "In state 0, left stays. In state 0, right leads to state 1 with probability 0.6.\nState 2 was never visited."


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (ARMS, ARMS),
        (ARMS, "Arm 1: Beta(2, 1)\nArm 2: Beta(1, 2)\nArm 3: Beta(1, 1)"),  # Its numbers changed.
        (ARMS, "Arm 3: Beta(1,1).\nARM 1: Beta(2,1).\nArm 2: Beta(1,1)."),  # Order, case and punctuation.
        (ARMS, "The arms:\nArm 1: Beta(2, 1)\nArm 2 and arm 3: Beta(1, 1)"),  # Two in one.
        (SWIM, SWIM.replace("0.6", "0.65") + " Right in state 1 leads to state 2."),
        ("The lever is up or down.", "The lever is up."),  # Something was ruled out.
        ("# Posterior\n- the code has a 4", "- the code has a 4 in position 2\n\n# Posterior"),
        ("", "Anything."),
        ("---\n***", "Anything."),  # No statement.
    ],
)
def test_what_was_kept_is_not_called_dropped(old, new):
    assert dropped_statements(old, new) == ()


@pytest.mark.parametrize(
    ("old", "new", "dropped"),
    [
        (ARMS, "Arm 1: Beta(2, 1)\nArm 2: Beta(1, 2)", ("Arm 3: Beta(1, 1)",)),
        (ARMS, "Arm 2: Beta(1, 2)", ("Arm 1: Beta(2, 1)", "Arm 3: Beta(1, 1)")),
        (SWIM, SWIM.replace("State 2 was never visited.", ""), ("State 2 was never visited.",)),
        (SWIM, SWIM.replace("In state 0, left stays. ", ""), ("In state 0, left stays.",)),
        (
            "The code has a 4. Position 2 is no 7.",
            "I cannot help with that.",
            ("The code has a 4.", "Position 2 is no 7."),
        ),
    ],
)
def test_what_was_dropped_is_named(old, new, dropped):
    assert dropped_statements(old, new) == dropped


statements = st.lists(st.from_regex(r"[a-z]{3,8} [a-z]{3,8} [0-9]{1,3}", fullmatch=True), min_size=1, unique=True)


@pytest.mark.thorough
@given(statements, st.data())
def test_a_new_text_that_has_every_old_statement_dropped_nothing(old, data):
    new = data.draw(st.permutations([*old, "something new was seen"]))
    assert dropped_statements("\n".join(old), "\n".join(new)) == ()


@pytest.mark.thorough
@given(statements, st.data())
def test_one_statement_that_is_left_out_is_noticed(old, data):
    gone = data.draw(st.sampled_from(old))
    dropped = dropped_statements("\n".join(old), "\n".join(statement for statement in old if statement != gone))
    assert len(dropped) == 1
