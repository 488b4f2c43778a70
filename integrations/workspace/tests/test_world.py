import numpy as np
import pytest
from amc_agents_workspace import CODING, CodingWorld, Progress, Remembered, generate_bugs
from amc_agents_workspace.bugs import original
from amc_agents_workspace.critic import from_spec

from amc_agents.envs.registry import world, worlds
from amc_agents.errors import CriticSpecError, EnvironmentStateError
from amc_agents.testing import check_environment
from amc_agents.types import Step, Task, Trajectory


@pytest.fixture(scope="module")
def task():
    return next(generate_bugs(1, "train"))


def repairs(task):
    """The commands that restore the wrong lines."""
    lines = original(task.payload.module).split("\n")
    numbers = [defect.line for defect in task.payload.defects]
    return [f"edit {task.payload.module}.py {number}-{number}\n{lines[number - 1]}" for number in numbers]


async def started(task):
    made = CodingWorld()
    await made.reset(task)
    return made


async def test_the_contract_of_an_environment_is_kept(task):
    remembered = Remembered()
    actions = [f"read {task.payload.module}.py", "test", *repairs(task), "test"]
    await check_environment(lambda: CodingWorld(remembered), task, actions)


async def test_repairing_every_line_gives_the_reward(task):
    made = await started(task)
    *first, last = repairs(task)
    for command in first:
        assert (await made.step(command)).observation.startswith("Edited ")
    halfway = await made.step("test")
    assert (halfway.reward, halfway.done) == (0.0, False)
    await made.step(last)
    end = await made.step("test")
    assert (end.reward, end.terminated) == (1.0, True)
    removed = [line for line in made.files.diff().splitlines() if line.startswith("-") and line[1] != "-"]
    assert len(removed) == len(first) + 1
    await made.close()


async def test_lines_are_read_replaced_and_deleted(task):
    made = await started(task)
    name = f"{task.payload.module}.py"
    lines = task.payload.source.split("\n")
    assert (await made.step(f"read {name}")).observation.split("\n")[0] == f"1: {lines[0]}"
    assert (await made.step(f"edit {name} 2-3\na\n  b\n")).observation == f"Edited {name}:\n2: a\n3:   b\n4: "
    assert (made.files.path / name).read_text().split("\n") == [lines[0], "a", "  b", "", *lines[3:]]
    assert (await made.step(f"edit {name} 1")).observation == f"Deleted lines 1-1 of {name}."
    assert (made.files.path / name).read_text().split("\n")[:2] == ["a", "  b"]
    await made.close()


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("read ../secret.py", "There is no file '../secret.py'; there are "),
        ("edit {module}.py 0-1\nx", "{module}.py has the lines 1 to "),
        ("edit {module}.py 3-2\nx", "{module}.py has the lines 1 to "),
        ("edit test_{module}.py 1-1\n", "The tests cannot be edited."),
        ("edit {module}.py 1\n\ud800", "The text cannot be encoded as UTF-8."),
        ("rm -rf .", "There is no such command."),
    ],
)
async def test_what_cannot_be_done_is_answered_and_changes_nothing(task, command, answer):
    made = await started(task)
    module = task.payload.module
    observation = (await made.step(command.format(module=module))).observation
    assert observation.startswith(answer.format(module=module))
    assert made.files.changes() == []
    await made.close()


async def test_closing_removes_the_folder(task):
    made = await started(task)
    twin = await made.fork(1)
    folders = [made.files.path, twin.files.path]
    assert folders[0] != folders[1]
    for each in (made, twin):
        await each.close()
    assert not any(folder.exists() for folder in folders)
    with pytest.raises(EnvironmentStateError):
        _ = made.files


async def test_a_task_of_another_world_is_refused():
    with pytest.raises(EnvironmentStateError, match="generate_bugs"):
        await CodingWorld().reset(Task("other", "do it"))


async def test_the_critic_reads_the_newest_report():
    start = Trajectory(Task("a", "Repair it.\n3 of 8 tests pass.\nFAILED test_a: 9 of 9 tests pass."))
    better = start.extended(Step("test", "6 of 8 tests pass.\nFAILED test_b: x"))
    edited = better.extended(Step("edit a.py 1-1\nx", "Edited a.py:\n1: x"))
    worse = edited.extended(Step("test", "2 of 8 tests pass.\nFAILED test_b: x"))
    silent = Trajectory(Task("a", "Repair it."))
    assert np.array_equal(
        await Progress().values([start, better, edited, worse, silent]), [3 / 8, 6 / 8, 6 / 8, 2 / 8, 0]
    )
    assert isinstance(from_spec("", {}), Progress)
    with pytest.raises(CriticSpecError):
        from_spec("target", {})


async def test_the_offered_world_can_be_played():
    tasks = list(CODING.tasks(2, "test", 0))
    made = CODING.make()
    assert (await made.reset(tasks[1])).observation == tasks[1].instruction
    await made.close()
    if "coding" in worlds():  # Where this package is installed, not only on the path.
        assert world("coding") is CODING
