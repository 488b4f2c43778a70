import json
import shutil

import pytest

pytest.importorskip("scienceworld", reason="the package scienceworld is not installed")
if shutil.which("java") is None:
    pytest.skip("ScienceWorld needs Java", allow_module_level=True)

from amc_agents_scienceworld import find_agent, task_of

from amc_agents.bench.own import load_own_agent
from amc_agents.bench.own.rollouts import OwnRollouts
from amc_agents.types import Task

SOLVED = 1.0 - 1e-6


async def test_the_trained_policy_solves_a_development_task_and_its_runs_differ():
    own = load_own_agent("amc_agents_scienceworld.find_agent")
    whole = task_of("scienceworld/find-non-living-thing/150")
    task = Task(whole.id, find_agent.shown(whole.instruction))
    runs = await OwnRollouts(own, 6, 0.5, own.horizon)(task, seed=0)
    assert max(run.return_ for run in runs) >= SOLVED
    assert len({tuple(step.action for step in run.steps) for run in runs}) > 1


def test_tasks_are_printed_without_the_actions_that_the_policy_never_read(capsys):
    find_agent.main(3)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["id"].split("/")[1] for line in lines] == list(find_agent.FAMILIES)
    assert all(line["instruction"].startswith("Goal: ") for line in lines)
    assert {line["split"] for line in lines} == {"test"}
