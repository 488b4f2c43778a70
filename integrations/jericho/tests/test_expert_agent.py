import json

import pytest

pytest.importorskip("jericho", reason="the package jericho is not installed")
from playing import NO_INFORM

if NO_INFORM:
    pytest.skip(NO_INFORM, allow_module_level=True)

from amc_agents_jericho import generate_tasks
from amc_agents_jericho.critic import KeepProgress
from amc_agents_jericho.expert_agent import main, make_agent, make_environment, task_of

from amc_agents import AtSteps, amc
from amc_agents.errors import ConfigurationError
from amc_agents.types import Task


def test_a_task_is_restored_from_its_id():
    task = next(generate_tasks(1, "test", 3))
    assert task_of(task.id) == task
    with pytest.raises(ConfigurationError, match="expected the id of a generated game"):
        task_of("jericho-keep/test")


def test_the_agent_plays_tasks_of_a_file_and_is_resampled(capsys):
    main(1, "train")
    line = json.loads(capsys.readouterr().out)
    task = Task(line["id"], line["instruction"])
    graph = amc(
        make_agent(1.0),
        KeepProgress(),
        environment=lambda state: (make_environment(task), task),
        n_particles=3,
        seed=0,
        resample=AtSteps(5),
        horizon=12,
    )
    run = graph.run({"messages": [("user", task.instruction)]})
    assert len(run.best.steps) <= 12
    assert run.best.return_ >= 0.2  # At least the first sub-goal, by the best of three particles.
