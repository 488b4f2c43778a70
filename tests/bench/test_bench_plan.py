from __future__ import annotations

import contextlib
import shutil
from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest

from amc_agents.bench.methods import Tuned, lac, listed_variants, react
from amc_agents.bench.plan import ComparisonPlan
from amc_agents.bench.report import Results
from amc_agents.bench.run_files import read_decisions
from amc_agents.cli import main
from amc_agents.critics.value.local import ADAPTER
from amc_agents.envs import registry as found
from amc_agents.envs.crafting import CraftingWorld, generate_tasks
from amc_agents.envs.registry import WorldSpec
from amc_agents.errors import ConfigurationError
from amc_agents.models.embedded import model_folder

PLANNER = "amc_agents.bench.planner_critic:PlannerCritic"


class Miserly(CraftingWorld):
    """Pays half for the goal."""

    async def step(self, action):
        answer = await super().step(action)
        return replace(answer, reward=answer.reward / 2)


def easy_tasks(n_tasks, split, first):
    return generate_tasks(n_tasks, split, first_seed=first, optimal_steps=(2, 3))


LISTED = WorldSpec(Miserly, easy_tasks, horizon=3, model="crafting", actions=("inventory", "get 1 x"))
MISERLY = WorldSpec(Miserly, easy_tasks, horizon=7, model="crafting", success=0.5, oracle=PLANNER)


@pytest.fixture(autouse=True)
def offered(monkeypatch):
    points = [EntryPoint(name.lower(), f"{__name__}:{name}", found.GROUP) for name in ("MISERLY", "LISTED")]
    monkeypatch.setattr(found, "entry_points", lambda group: points)


@pytest.fixture
def bench(tmp_path, monkeypatch, capsys):
    def run(*arguments):
        given = ["bench", "--world", "miserly", "--tasks", "3", "--workers", "1", "--out", str(tmp_path / "out")]
        monkeypatch.setattr("sys.argv", ["amc", *given, *arguments])
        with contextlib.suppress(SystemExit):
            main()
        return capsys.readouterr().out

    return run


@pytest.mark.thorough
def test_a_registered_world_sets_horizon_success_and_oracle(bench, tmp_path):
    told = bench("--methods", "react,vote,lac,lac-oracle", "--first", "40", "--seeds", "2")
    results = Results.load(tmp_path / "out" / "results.json")
    assert {name: results.settings[name] for name in ("world", "horizon", "success")} == {
        "world": "miserly", "horizon": 7, "success": 0.5,
    }  # fmt: skip
    assert "band" not in results.settings
    oracle = results.of("lac-oracle").scores
    assert oracle["success"].mean == 2 * oracle["oracle"].mean > 0
    assert oracle["success"].tasks == 3
    shown = {(one.a, one.b, one.metric) for one in results.comparisons}
    assert ("lac", "vote", "success") in shown
    assert "in the miserly world" in told
    text = (tmp_path / "out" / "results.md").read_text()
    assert "| success |" in text
    assert "| LAC - vote | success |" in text
    assert "returned 0.5 or more" in text


@pytest.mark.thorough
def test_a_world_that_lists_its_actions_has_them_all_as_candidates(bench, tmp_path):
    told = bench("--methods", "vote-list,lac-list", "--world", "listed", "--keep-decisions", "--candidates", "2")
    decisions = read_decisions(tmp_path / "out")
    assert {one.method for one in decisions} == {"vote-list", "lac-list"}
    candidates = [[each["action"] for each in made["candidates"]] for one in decisions for made in one.decisions]
    assert all(one == ["inventory", "get 1 x"] for one in candidates)
    assert {made["prior"] for one in decisions for made in one.decisions} == {"list"}
    assert "LAC, listed - vote, listed" in told
    with pytest.raises(ConfigurationError, match="this world lists none"):
        ComparisonPlan(methods=(*listed_variants(Tuned()),), n_tasks=1, world="miserly").comparison()


def test_tasks_of_a_plan_are_those_of_the_split_from_the_first_on():
    plan = ComparisonPlan(methods=(react(),), n_tasks=4, world="miserly", first=40)
    assert [task.id for task in plan.tasks()] == [task.id for task in easy_tasks(4, "test", 40)]
    hard = ComparisonPlan(methods=(react(),), n_tasks=2)
    assert all(12 <= task.payload.optimal_steps <= 16 for task in hard.tasks())
    assert hard.comparison().settings["band"] == [12, 16]


def test_missing_parts_of_a_world_are_named(tmp_path, bench):
    with pytest.raises(ConfigurationError, match="difficulty band applies to the crafting world only"):
        ComparisonPlan(methods=(), n_tasks=1, world="miserly", band=(2, 3))
    folder = tmp_path / "policy"
    shutil.copytree(model_folder("crafting"), folder, ignore=shutil.ignore_patterns(ADAPTER, "verdict"))
    assert ComparisonPlan(methods=(lac(),), n_tasks=1, world="miserly", model=str(folder)).critic_spec == "uniform"
    told = bench("--methods", "react,lac", "--model", str(folder))
    assert "left out: lac (no critic judges their decisions" in " ".join(told.split())
    assert [one.name for one in Results.load(tmp_path / "out" / "results.json").methods] == ["react"]
