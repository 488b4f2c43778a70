"""`amc run`, and `--watch`: populations in place on a terminal, and as lines elsewhere."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from amc_agents.cli.console import PlainConsole
from amc_agents.cli.watch import (
    LinesView,
    LiveView,
    ParticleRow,
    Snapshot,
    draws_in_place,
    one_run,
    point_text,
    several_runs,
    snapshot,
    watched,
)
from amc_agents.errors import QuorumLost
from amc_agents.population.features.watchers import watched_as, watching
from amc_agents.population.wrap import amc
from amc_agents.quoting import printable
from amc_agents.run import WeighingPoint
from amc_agents.smc import AtSteps
from amc_agents.types import Trajectory
from tests.population.worlds import ReturnSoFar, number_agent, start, sum_world

MODULE = """
from langgraph.graph import START, MessagesState, StateGraph
from amc_agents import AtSteps, amc, effect
from tests.population.worlds import ReturnSoFar, number_agent, sum_world
agent = number_agent()
graph = amc(agent, ReturnSoFar(), environment=sum_world, n_particles=4, resample=AtSteps(2))

@effect("read")
def tools(state):
    return {"messages": [("ai", "said")]}

builder = StateGraph(MessagesState).add_node("tools", tools).add_edge(START, "tools")
plain = builder.compile()
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module in the working directory, with an agent and a graph."""
    (tmp_path / "watched_agent.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return "watched_agent"


def screen(**settings):
    return PlainConsole(file=io.StringIO(), width=120, height=settings.pop("height", 30), **settings)


def text_of(console):
    return console.file.getvalue()


def rows(n, action="get 2 clay"):
    return tuple(ParticleRow(slot, 3, "runs", 0.5, np.nan, 1 / n, action) for slot in range(n))


POINT = WeighingPoint(3, np.array([0.25, np.nan, 1.0, 0.5]), np.zeros(4), 2.5, np.array([2, 2, 3, 3]), (0,))


def shown(n=4, action="get 2 clay", points=(POINT,)):
    return Snapshot("amc, task 1", rows(n, action), 1, points, 12, 3456, {"calls": (12.0, 100.0)})


def test_a_run_is_drawn_with_its_particles_resamplings_and_budget():
    console = screen()
    console.print(one_run(shown(), 30))
    drawn = text_of(console)
    assert "step 3 | 4 particles | 1 retired | resampled 1 times | 12 calls, 3,456 tokens | calls 12 of 100" in drawn
    assert "step 3: values 0.25 to 1, ESS 2.5; resampled: 2 of 4 have offspring, 1 retired" in drawn
    assert drawn.count("get 2 clay") == 4
    assert drawn.count("25%  ##") == 4


def test_other_weighings_are_described():
    before_any = WeighingPoint(0, np.full(2, np.nan), np.zeros(2), 2.0, None)
    committed = WeighingPoint(2, np.ones(2), np.zeros(2), 2.0, np.array([1, 1]), selected=1)
    assert point_text(before_any) == "step 0: no values, ESS 2.0"
    assert point_text(committed) == "step 2: values 1 to 1, ESS 2.0; particle 1 acted, and all continue it"


def test_a_small_terminal_shows_the_particles_of_most_weight():
    console = screen()
    heavy = ParticleRow(40, 3, "finished", 1.0, 1.0, 0.9, "the heavy one")
    console.print(one_run(Snapshot("run", (*rows(40), heavy), 0, (), 0, 0, {}), 20))
    assert "the heavy one" in text_of(console)
    assert "and 31 particles of less weight" in text_of(console)
    console.print(several_runs([shown()] * 14, 20))
    assert "and 4 more runs" in text_of(console)


@pytest.mark.parametrize("terminal", [True, False])
def test_what_a_model_writes_cannot_control_the_terminal(terminal):
    hostile = "a\x1b[2J\rb\x07\u202e[red]\nc"
    console = screen(force_terminal=terminal, color_system=None)
    console.print(one_run(shown(action=hostile), 30))
    console.print(several_runs([replace(shown(), name=hostile)], 30))
    drawn = text_of(console)
    assert "\\u001b[2J" in drawn
    assert [character for character in drawn if character != "\n" and character != printable(character)] == []


class Draws(ReturnSoFar):
    """A critic that looks at the view in the middle of the run."""

    def __init__(self, look) -> None:
        super().__init__()
        self.look, self.seen = look, list[str]()

    async def values(self, trajectories: Sequence[Trajectory]):
        self.seen.append(self.look())
        return await super().values(trajectories)


def drawn_by(view):
    console = screen()
    console.print(view.drawn())
    return text_of(console)


def test_a_view_shows_the_population_in_the_middle_of_a_run():
    view = LiveView(screen())
    critic = Draws(lambda: drawn_by(view))
    graph = amc(number_agent(), critic, environment=sum_world, n_particles=4, resample=AtSteps(2), seed=0)
    with watching(view):
        graph.invoke(start())
    graph.invoke(start())
    assert len(critic.seen) == 2, "and once without the watcher"
    assert "step 2 | 4 particles" in critic.seen[0]
    assert critic.seen[0].count(" runs ") == 4
    assert drawn_by(view).count(" finished ") == 4, "the end of the watched run stays"
    assert "resampled 1 times" in drawn_by(view)


def test_a_failed_run_is_no_longer_watched():
    def fails(messages):
        raise ConnectionError("no server")

    view = LiveView(screen(), several=True)
    with watching(view), watched_as("a run"), pytest.raises(QuorumLost):
        amc(number_agent(fails), "uniform", environment=sum_world, n_particles=2).invoke(start())
    assert view._now() == []


def test_lines_are_printed_once_and_in_order():
    console = screen()
    view = LinesView(console, named=True)

    def look():
        for name, system in view._now():
            view._print(name, system)
        return text_of(console)

    critic = Draws(look)
    graph = amc(number_agent(), critic, environment=sum_world, n_particles=4, resample=AtSteps(1, 2), seed=0)
    with watching(view), watched_as("task 1"):
        graph.invoke(start())
    lines = text_of(console).splitlines()
    assert [line.split(": ")[1] for line in lines] == ["step 1", "step 2", "step 4", "ended"]
    assert "step 1: values" in critic.seen[1], "while the run goes on"
    assert all(line.startswith("task 1: ") for line in lines)


def test_a_weighing_is_printed_once_it_is_complete():
    console = screen()
    view = LinesView(console, named=False)
    system = SimpleNamespace(history=[replace(POINT, ancestors=None)])
    view.begin("run", system)
    view._print("run", system)
    assert text_of(console) == "", "its particles may still be resampled"
    system.history = [POINT]
    view._print("run", system)
    assert "resampled: 2 of 4" in text_of(console)


@pytest.mark.parametrize(
    ("settings", "variables", "in_place"),
    [
        ({"force_terminal": True}, {"TERM": "xterm"}, True),
        ({"force_terminal": False}, {"TERM": "xterm"}, False),
        ({"force_terminal": True}, {"TERM": "dumb"}, False),
        ({"force_terminal": True}, {"TERM": "xterm", "NO_COLOR": "1"}, False),
    ],
)
def test_a_terminal_is_drawn_on_only_if_it_can_be(settings, variables, in_place, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    console = screen(color_system=None, **settings)
    assert draws_in_place(console) == in_place
    with watched(console):
        amc(number_agent(), environment=sum_world, n_particles=2, seed=0).invoke(start())
    assert ("\x1b[" in text_of(console)) == in_place
    assert "step 4" in text_of(console)


def test_run_prints_the_answer_and_the_run(command, module, tmp_path):
    code, out, err = command("run", f"{module}:graph", "--input", "Say numbers.", "--seed", "1", "--out", "kept")
    assert (code, err) == (0, "")
    assert out.startswith("taken ")
    assert "seed 1" in out
    assert (tmp_path / "kept" / "run.json").exists()


def test_run_watches_in_lines_beside_json(command, module):
    code, out, err = command("run", f"{module}:graph", "--input", "Say numbers.", "--watch", "--json", "--seed", "1")
    assert code == 0, err
    assert json.loads(out)["seed"] == 1
    lines = [line for line in err.splitlines() if line.startswith(("step", "ended"))]
    assert [line[:6] for line in lines] == ["step 2", "step 4", "ended:"]


def test_run_wraps_a_compiled_graph(command, module):
    for name in ("run", "estimate"):
        code, _, err = command(name, f"{module}:graph", "--input", "x", "--beta", "1", "--steps", "1,2")
        assert code == 2
        assert "leave --beta and --steps out" in err
    code, out, err = command("run", f"{module}:plain", "--input", "x", "--particles", "3", "--critic", "uniform")
    assert (code, err) == (0, "")
    assert out.startswith("said\n")
    assert "N = 3" in out
    assert "AtSteps(2, 4, 8, 16, 32), beta auto" in out
    given = ("--critic", "uniform", "--steps", "1,3", "--beta", "0.25")
    assert "AtSteps(1, 3), beta 0.25" in command("run", f"{module}:plain", "--input", "x", *given)[1]
    assert (
        '--beta must be a number above 0, or "auto"'
        in command("run", f"{module}:plain", "--input", "x", "--beta", "low")[2]
    )
    code, _, err = command("run", f"{module}:plain", "--input", "x")
    assert code == 2
    assert "no critic is named" in err


@pytest.mark.thorough
def test_bench_watches_the_runs_of_one_process(command, tmp_path):
    few = ["--tasks", "1", "--particles", "2", "--critic", "uniform", "--band", "2", "4", "--methods", "amc"]
    code, out, err = command("bench", "--out", tmp_path / "out", *few, "--watch")
    assert code == 0, err
    assert "amc, task crafting/test/0, seed 0: ended: step" in out


@pytest.mark.parametrize("option", [["--workers", "2"], ["--executor", "shared"]])
def test_bench_cannot_watch_other_processes(command, tmp_path, option):
    code, _, err = command("bench", "--out", tmp_path / "out", "--watch", *option)
    assert code == 2
    assert "leave --workers and --executor out" in err


def test_a_snapshot_reads_the_weights_of_all_particles():
    seen = []

    class Reads(ReturnSoFar):
        async def values(self, trajectories):
            seen.extend(snapshot(name, system) for name, system in view._now())
            return await super().values(trajectories)

    view = LiveView(screen())
    with watching(view):
        amc(number_agent(), Reads(), environment=sum_world, n_particles=4, resample=AtSteps(1, 3), seed=0).invoke(
            start()
        )
    assert [row.share for row in seen[0].particles] == pytest.approx([0.25] * 4)
    assert [row.steps for row in seen[1].particles] == [3] * 4
    assert seen[1].n_resampled == 1
    assert all(row.action.isdigit() for row in seen[0].particles)
