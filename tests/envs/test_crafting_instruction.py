from __future__ import annotations

import pytest

from amc_agents.envs.crafting import CraftingWorld, generate_task, generate_tasks, plan
from amc_agents.envs.crafting.tasks import parse_instruction
from amc_agents.errors import ConfigurationError
from amc_agents.testing import check_environment

ROD = "Crafting commands:\ncraft 1 rod using 2 clay\n\nGoal: craft rod."


def test_round_trip_on_generated_tasks():
    for task in generate_tasks(100, "test"):
        parsed = parse_instruction(task.instruction)
        assert parsed.instruction == task.instruction
        assert parsed.payload == task.payload


def test_the_parsed_task_has_an_id_of_its_own_text():
    one, other = (parse_instruction(generate_task(seed).instruction) for seed in (1, 2))
    assert one.id != other.id
    assert one.id == parse_instruction(f"\n{one.instruction}  \n").id


def test_what_was_pasted_is_forgiven_its_spaces():
    task = generate_task(5)
    pasted = "  " + task.instruction.replace("\n", "  \r\n") + "\n\n"
    assert parse_instruction(pasted).instruction == task.instruction


async def test_the_parsed_task_can_be_played_to_its_end():
    task = parse_instruction(generate_task(3, "test").instruction)
    actions = plan(task.payload.book, task.payload.goal)
    await check_environment(CraftingWorld, task, actions)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task 7", "expected an instruction"),
        ("", "expected an instruction"),
        (ROD.replace("2 clay", "clay"), "expected a recipe"),
        (ROD.replace("using", "with"), "expected a recipe"),
        (ROD.replace("craft rod.", "craft lamp."), "do not allow crafting 'lamp'"),
        (ROD.replace("2 clay", "1 rod"), "do not allow crafting 'rod'"),
    ],
)
def test_what_is_not_a_task_is_refused_by_name(text, message):
    with pytest.raises(ConfigurationError, match=message):
        parse_instruction(text)
