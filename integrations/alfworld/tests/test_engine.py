import json
import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("alfworld", reason="the package alfworld is not installed")

import fast_downward
from amc_agents_alfworld import AlfworldWorld, generate_tasks
from amc_agents_alfworld.engine import Engine
from amc_agents_alfworld.world import started
from textworld.envs.pddl import PddlEnv

from amc_agents.errors import ForkError

TASKS = list(generate_tasks(6, "train", 6))
VENDOR = """
import json, sys, textworld
from alfworld.agents.utils.misc import Demangler
from textworld.envs.pddl import PddlEnv

game, commands = json.load(sys.stdin)
engine = PddlEnv(textworld.EnvInfos(admissible_commands=True, won=True))
engine.load(game)
names = Demangler(game_infos=engine._entity_infos)
for entity in engine._entity_infos.values():
    entity.name = names.demangle_alfred_name(entity.id)
states = [engine.reset(), *(engine.step(command)[0] for command in commands)]
print(json.dumps([[state.feedback, state.admissible_commands, bool(state.won)] for state in states]))
"""


def random_play(game, seed, steps=25):
    """Play plans with random commands between them: (commands, [feedback, admissible commands, won] of each state)."""
    engine, state = started(game)
    rng, commands, states = np.random.default_rng(seed), [], []
    for _ in range(steps):
        states.append([state.feedback, state.admissible_commands, bool(state.won)])
        choices = [*engine.plan()[:1], "fly to the moon", str(rng.choice(state.admissible_commands))]
        commands.append(choices[int(rng.choice(3, p=(0.5, 0.1, 0.4)))])
        state, _, done = engine.step(commands[-1])
        if done:
            break
    engine.close()
    return commands, [*states, [state.feedback, state.admissible_commands, bool(state.won)]]


def test_the_answers_are_those_of_the_vendors_engine():
    task = TASKS[5]
    commands, states = random_play(task.payload.game, seed=1)
    done = subprocess.run(
        [sys.executable, "-c", VENDOR], input=json.dumps([dict(task.payload.game), commands]), capture_output=True,
        text=True, check=True, timeout=120, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert json.loads(done.stdout) == states


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.payload.task_type)
def test_a_remembered_command_is_that_of_the_grammar(task):
    engine, state = started(task.payload.game)
    again = PddlEnv.__new__(PddlEnv)
    again.__dict__.update(engine.__dict__)
    again.state = type(state)()
    again._gather_infos()
    assert again.state["_valid_commands"] == engine.state["_valid_commands"]
    assert again.state["admissible_commands"] == state.admissible_commands
    engine.close()


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.payload.task_type)
def test_a_twin_continues_as_its_origin_would(task):
    commands, states = random_play(task.payload.game, seed=2)
    engine, _ = started(task.payload.game)
    for depth, command in enumerate(commands):
        twin = engine.twin()
        assert twin.plan() == engine.plan()
        if depth % 3 == 1:  # Otherwise the next twins are those of an engine that was reset.
            engine.close()
            engine = twin.twin()
        for later, expected in zip(commands[depth:], states[depth + 1 :], strict=True):
            state, _, _ = twin.step(later)
            assert [state.feedback, state.admissible_commands, bool(state.won)] == expected
        twin.close()
        engine.step(command)
    engine.close()


def test_a_twin_in_another_state_is_refused_and_gives_its_planner_back():
    from amc_agents_alfworld import engine as module

    engine, state = started(TASKS[0].payload.game)
    engine.step(next(command for command in state.admissible_commands if command.startswith("go to")))
    engine._applied.clear()
    Engine().close()
    before = len(module._unused_planners)
    with pytest.raises(ForkError, match="another state after the same operators"):
        engine.twin()
    assert len(module._unused_planners) == before
    engine.close()


async def test_a_closed_world_gives_its_planner_to_the_next(monkeypatch):
    loaded = []
    load = fast_downward.load_lib
    monkeypatch.setattr(fast_downward, "load_lib", lambda: loaded.append(1) or load())
    worlds = [AlfworldWorld() for _ in range(3)]
    for world in worlds:
        await world.reset(TASKS[0])
    for world in worlds:
        await world.close()
    before = len(loaded)
    for _ in range(5):
        world = AlfworldWorld()
        await world.reset(TASKS[0])
        twins = [await world.fork(seed) for seed in range(2)]
        for each in (world, *twins):
            await each.close()
            await each.close()
    assert len(loaded) == before


def test_an_engine_that_cannot_read_a_game_gives_its_planner_back():
    from amc_agents_alfworld import engine as module

    engine = Engine()
    engine.close()
    before = len(module._unused_planners)
    with pytest.raises(Exception, match="engine cannot read"):
        started({"pddl_domain": "(", "grammar": "", "pddl_problem": "("})
    assert len(module._unused_planners) == before


def test_games_in_progress_do_not_share_a_state():
    (engine, first), (other, second) = (started(TASKS[0].payload.game) for _ in range(2))
    assert first.feedback == second.feedback
    command = engine.plan()[0]
    engine.step(command)
    assert other.plan()[0] == command
    assert engine.plan()[:1] != [command]
    engine.close()
    other.close()


def test_the_command_line_of_the_process_is_kept(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["amc", "bench"])
    next(generate_tasks(1, "train", 12345))
    assert sys.argv == ["amc", "bench"]


def test_a_command_that_depends_on_the_state_is_not_remembered():
    game = dict(TASKS[0].payload.game)
    shown = 'template :: "inventory [{o.name | holds(a:agent, o:object)}]"'
    game["grammar"] = game["grammar"].replace('template :: "inventory"', shown)
    engine, state = started(game)
    assert "inventory nothing" in state.admissible_commands
    while not (command := engine.plan()[0]).startswith("take"):
        engine.step(command)
    state, _, _ = engine.step(command)
    assert f"inventory {command.removeprefix('take ').split(' from ')[0]}" in state.admissible_commands
    engine.close()
