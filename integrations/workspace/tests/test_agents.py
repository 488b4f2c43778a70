import re

import numpy as np
import pytest
from amc_agents_workspace import TOOLS, CodingWorld, Progress, Remembered, generate_bugs, mutations, scripted_policy
from amc_agents_workspace.bugs import original
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from amc_agents import AtSteps, amc, text_agent
from amc_agents.models.seeding import use_rng
from amc_agents.testing import ScriptedChatModel


@pytest.fixture(scope="module")
def task():
    return next(generate_bugs(1, "train"))


def search(agent, task, **settings):
    remembered = Remembered()
    return amc(
        agent,
        Progress(),
        environment=lambda _: (CodingWorld(remembered), task),
        **{"n_particles": 8, "resample": AtSteps(5, 9), "beta": 0.1, "horizon": 13, "seed": 0, **settings},
    ).run({"messages": [("user", task.instruction)]})


def test_particles_repair_the_repository_each_in_its_folder(task):
    run = search(text_agent(scripted_policy(0.5)), task)
    paths = run.population.trajectories
    assert max(path.return_ for path in paths) == 1.0
    assert len({tuple(step.action for step in path.steps) for path in paths}) > 1
    for path in paths:
        assert path.steps[0].observation.startswith(f"1: {original(task.payload.module).splitlines()[0]}")
        assert [step.action.split()[0] for step in path.steps[1:4]] == ["edit", "test", "edit"]
        success = path.steps[-1].observation.splitlines()[0] in {f"{n} of {n} tests pass." for n in range(20)}
        assert path.return_ == float(success)


def test_an_agent_with_tools_can_use_the_world(task):
    lines = original(task.payload.module).split("\n")
    numbers = [defect.line for defect in task.payload.defects]
    name = f"{task.payload.module}.py"

    def respond(messages):
        step = sum(isinstance(message, ToolMessage) for message in messages)
        if step > len(numbers) + 1:
            return "done"
        calls = [
            ("read_file", {"path": name}),
            *(
                ("edit_file", {"path": name, "first_line": n, "last_line": n, "new_text": lines[n - 1]})
                for n in numbers
            ),
            ("run_tests", {}),
        ]
        tool, args = calls[step]
        return AIMessage("", tool_calls=[{"name": tool, "args": args, "id": f"call-{step}"}])

    agent = create_agent(ScriptedChatModel(respond=respond), list(TOOLS))
    run = search(agent, task, n_particles=2, resample=AtSteps(2))
    assert [path.return_ for path in run.population.trajectories] == [1.0, 1.0]


@pytest.mark.parametrize("p_fix", [0.0, 0.3, 1.0])
def test_the_policy_restores_lines_with_its_probability(task, p_fix):
    source = task.payload.source
    read = "\n".join(f"{number}: {line}" for number, line in enumerate(source.split("\n"), 1))
    messages = [HumanMessage(task.instruction), AIMessage(f"Action: read {task.payload.module}.py"), HumanMessage(read)]
    right = {
        (defect.line, original(task.payload.module).split("\n")[defect.line - 1]) for defect in task.payload.defects
    }
    # A mutation can undo a defect by chance.
    undone = np.mean([(m.line, m.apply(source).split("\n")[m.line - 1]) in right for m in mutations(source)])
    policy, fixed = scripted_policy(p_fix), []
    with use_rng(np.random.default_rng(0)):
        for _ in range(400):
            edit = re.fullmatch(r"Action: edit \w+\.py (\d+)-\1\n(.*)", policy.invoke(messages).text)
            assert edit is not None
            fixed.append((int(edit[1]), edit[2]) in right)
    assert abs(np.mean(fixed) - (p_fix + (1 - p_fix) * undone)) < 0.08


def test_the_policy_runs_the_tests_after_an_edit_and_sees_its_own_edits(task):
    name = f"{task.payload.module}.py"
    read = "\n".join(f"{number}: {line}" for number, line in enumerate(task.payload.source.split("\n"), 1))
    messages = [HumanMessage(task.instruction), AIMessage(f"Action: read {name}"), HumanMessage(read)]
    policy = scripted_policy(1.0)
    repaired = set()
    for _ in task.payload.defects:
        answer = policy.invoke(messages).text
        repaired.add(int(answer.split("-")[1].split("\n")[0]))
        messages += [AIMessage(answer), HumanMessage("Edited")]
        assert policy.invoke(messages).text == "Action: test"
        messages += [AIMessage("Action: test"), HumanMessage("1 of 9 tests pass.")]
    assert repaired == {defect.line for defect in task.payload.defects}
