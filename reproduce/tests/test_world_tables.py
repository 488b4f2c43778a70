"""The tables and the value model of reproduce/worlds."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, replace
from itertools import combinations, permutations

import numpy as np
import pytest

from amc_agents.bench.methods import Tuned
from amc_agents.bench.plan import ComparisonPlan
from amc_agents.bench.records import Cost, Particles, RunResult, Scores
from amc_agents.types import Step, Task, Trajectory
from reproduce.worlds import goal_value, registered, tables, word_value


def result(method, task, returns, calls):
    mean, best = float(np.mean(returns)), max(returns)
    scores = Scores(best, float(best >= 1), None, mean, mean, mean, mean, mean, len(returns), len(returns))
    costs = Cost(calls, 0, 0, 0, 0, 0, 0, 0, 1.0)
    flat = tuple(0.0 for _ in returns)
    return RunResult(method, task, 0, scores, costs, particles=Particles(tuple(returns), flat, (0,) * len(returns)))


def test_the_expected_best_of_a_subset_is_that_of_all_subsets():
    values = [0.3, 1.0, 0.3, -1.0, 0.8]
    for size in range(1, 6):
        assert tables.expected_best(values, size) == pytest.approx(
            np.mean([max(s) for s in combinations(values, size)])
        )
    between = 0.25 * tables.expected_best(values, 2) + 0.75 * tables.expected_best(values, 3)
    assert tables.expected_best(values, 2.75) == pytest.approx(between)


@pytest.mark.parametrize("size", [0, 5.5, 6])
def test_a_pool_that_is_too_small_is_an_error(size):
    with pytest.raises(ValueError, match="play a larger pool"):
        tables.expected_best([0.0] * 5, size)


def test_the_table_compares_at_equal_n_and_at_equal_calls(tmp_path):
    pool, amc = [], []
    for number in range(4):
        pool.append(result("best-of-n", f"t{number}", [1.0, 0.0, 0.0, 0.0], calls=40))
        amc.append(result("amc", f"t{number}", [1.0, 1.0], calls=30))
    for name, runs in {"pool": pool, "amc": amc}.items():
        (tmp_path / name).mkdir()
        lines = [json.dumps(asdict(run)) for run in runs]
        (tmp_path / name / "records.jsonl").write_text("\n".join(lines) + "\n")
        tables.pack([tmp_path / name], tmp_path / "raw" / f"{name}.jsonl.gz")
    row = {"label": "AMC", "n": 2, "file": "amc.jsonl.gz", "method": "amc"}
    pair = {"label": "AMC - pool", "a": ["amc.jsonl.gz", "amc"], "b": ["pool.jsonl.gz", "best-of-n"]}
    plan = {"pool": "pool.jsonl.gz", "sizes": [2], "rows": [row], "differences": [pair]}
    (tmp_path / "rows.json").write_text(json.dumps(plan))
    lines = tables.table(tmp_path).splitlines()
    assert lines[0] == "4 tasks, 1 seed"
    nothing, mean = "+0.000 [+0.000, +0.000]", "**+0.750 [+0.750, +0.750]**"
    assert lines.pop() == f"| AMC - pool | {nothing} | {nothing} | {mean} |"
    assert lines.pop().startswith("|---|")
    assert (lines.pop(), lines.pop()) == ("| difference | success | best return | mean particle |", "")
    assert lines[-3].startswith("| single run | 1 | 0.250 ± 0.000 | 0.250 ± 0.000 | 0.250 ± 0.000 | 10 |")
    assert lines[-2].startswith("| Best-of-N | 2 | 0.500 ± 0.000 | 0.500 ± 0.000 | 0.250 ± 0.000 | 20 |")
    # 30 calls pay for 3 of the pool's runs, of which one succeeds in 3 of 4 cases.
    assert "| **+0.500 [+0.500, +0.500]** | **+0.250 [+0.250, +0.250]** (M = 3.0) |" in lines[-1]


@pytest.fixture
def page(tmp_path):
    """A page of four tasks: a pool of 4 runs, and SMC, AMC and a vote."""
    page = tmp_path / "results" / "world"
    runs = {
        "pool": [result("best-of-n", f"t{number}", [1.0, 0.0, 0.0, 0.0], calls=40) for number in range(4)],
        "smc": [result("smc", f"t{number}", [float(number > 0), 0.0], calls=20) for number in range(4)],
        "amc": [result("amc", f"t{number}", [1.0, 1.0], calls=30) for number in range(4)],
        "vote": [result("vote", f"t{number}", [1.0], calls=10) for number in range(4)],
    }
    for name, records in runs.items():
        (tmp_path / name).mkdir()
        lines = [json.dumps(asdict(run)) for run in records]
        (tmp_path / name / "records.jsonl").write_text("\n".join(lines) + "\n")
        tables.pack([tmp_path / name], page / "raw" / f"{name}.jsonl.gz")
    return page


def test_packed_records_are_packed_again_together_with_those_of_a_folder(tmp_path):
    for name, task in (("a", "t0"), ("b", "t1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "records.jsonl").write_text(json.dumps(asdict(result("amc", task, [1.0], calls=1))) + "\n")
    packed, both = tmp_path / "a.jsonl.gz", tmp_path / "both.jsonl.gz"
    tables.pack([tmp_path / "a"], packed)
    tables.pack([packed, tmp_path / "b"], both)
    assert set(tables.unpack(both, "amc")) == {("t0", 0), ("t1", 0)}
    expected = both.read_bytes()
    tables.pack([both, tmp_path / "a"], both)
    assert both.read_bytes() == expected
    (tmp_path / "a" / "records.jsonl").write_text(json.dumps(asdict(result("amc", "t0", [0.0], calls=1))) + "\n")
    with pytest.raises(ValueError, match="another record"):
        tables.pack([both, tmp_path / "a"], both)


def test_a_call_that_draws_several_turns_counts_several_times(page):
    row = {"label": "vote", "n": 1, "file": "vote.jsonl.gz", "method": "vote", "samples": 2}
    (page / "rows.json").write_text(json.dumps({"pool": "pool.jsonl.gz", "sizes": [], "rows": [row]}))
    line = tables.table(page).splitlines()[-1]
    assert "| 20 | **+0.750 [+0.750, +0.750]** | **+0.500 [+0.500, +0.500]** (M = 2.0) |" in line


def test_the_tries_until_a_success_are_those_of_all_orders():
    returns = [0.3, 1.0, 0.0, 1.0, -1.0]

    def tries(size):
        first = [[*(value == 1.0 for value in order[:size]), True].index(True) + 1 for order in permutations(returns)]
        return np.mean(np.minimum(first, size))

    for size in range(1, 6):
        assert tables.tries_until_success(returns, size) == pytest.approx(tries(size))
    assert tables.tries_until_success(returns, 1.5) == pytest.approx((tries(1) + tries(2)) / 2)


def test_equal_calls_draw_from_the_tries_of_all_seeds(tmp_path):
    # One seed's pool has 4 tries of 10 calls; the row makes 50 calls, which only both pools together can match.
    for name, runs in {
        "pool": [
            replace(result("best-of-n", f"t{number}", [float(seed), 0.0, 0.0, 0.0], calls=40), seed=seed)
            for number in range(3)
            for seed in range(2)
        ],
        "amc": [
            replace(result("amc", f"t{number}", [1.0], calls=50), seed=seed) for number in range(3) for seed in range(2)
        ],
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "records.jsonl").write_text("".join(json.dumps(asdict(run)) + "\n" for run in runs))
        tables.pack([tmp_path / name], tmp_path / "raw" / f"{name}.jsonl.gz")
    rows = [
        {"label": "AMC", "n": 1, "file": "amc.jsonl.gz", "method": "amc"},
        {"label": "more", "n": 1, "file": "amc.jsonl.gz", "method": "amc", "samples": 2},
    ]
    (tmp_path / "rows.json").write_text(json.dumps({"pool": "pool.jsonl.gz", "sizes": [], "rows": rows}))
    equal, more = tables.table(tmp_path).splitlines()[-2:]
    # One of the 8 tries succeeds: 5 of them hold it in 5 of 8 cases.
    assert "**+0.375 [+0.375, +0.375]** (M = 5.0) |" in equal
    assert "+0.000 [+0.000, +0.000] (M = 8.0, all tries: fewer calls) |" in more


def test_a_row_that_stops_is_compared_with_tries_that_stop(page):
    # Of 4 tries one succeeds, each has 10 calls: 10, 17.5, 22.5 and 25 calls until the first success or the last try.
    def cell(calls):
        row = {"label": "tree", "n": 2, "file": "vote.jsonl.gz", "method": "vote", "samples": calls / 10, "stops": True}
        (page / "rows.json").write_text(json.dumps({"pool": "pool.jsonl.gz", "sizes": [], "rows": [row]}))
        return tables.table(page).splitlines()[-1]

    assert "**+0.500 [+0.500, +0.500]** (M = 2.0, stopping)" in cell(17.5)
    assert "**+0.375 [+0.375, +0.375]** (M = 2.5, stopping)" in cell(20)
    assert "(M = 4.0, stopping, all tries: fewer calls)" in cell(100)


def test_fewer_calls_than_those_of_a_single_run_are_compared_with_a_single_run(page):
    row = {"label": "half a run", "n": 1, "file": "vote.jsonl.gz", "method": "vote", "samples": 0.5}
    (page / "rows.json").write_text(json.dumps({"pool": "pool.jsonl.gz", "sizes": [], "rows": [row]}))
    assert "| 5 |" in tables.table(page)
    assert tables.table(page).splitlines()[-1].endswith("(M = 1.0) |")


def test_a_row_with_fewer_seeds_says_so_and_is_compared_with_the_same_seeds(page, tmp_path):
    (tmp_path / "better").mkdir()
    later = [replace(result("best-of-n", f"t{number}", [1.0] * 4, calls=40), seed=1) for number in range(4)]
    (tmp_path / "better" / "records.jsonl").write_text("".join(json.dumps(asdict(run)) + "\n" for run in later))
    pool = page / "raw" / "pool.jsonl.gz"
    tables.pack([pool, tmp_path / "better"], pool)
    row = {"label": "AMC", "n": 2, "file": "amc.jsonl.gz", "method": "amc"}
    pairs = [
        {"label": "AMC - pool", "a": ["amc.jsonl.gz", "amc"], "b": ["pool.jsonl.gz", "best-of-n"]},
        {"label": "pool - pool", "a": ["pool.jsonl.gz", "best-of-n"], "b": ["pool.jsonl.gz", "best-of-n"]},
    ]
    plan = {"pool": "pool.jsonl.gz", "sizes": [2], "rows": [row], "differences": pairs}
    (page / "rows.json").write_text(json.dumps(plan))
    *lines, both, same = tables.table(page).splitlines()
    assert both.startswith("| AMC - pool (1 seed) |")
    assert same.startswith("| pool - pool | +0.000")
    lines = lines[:-3]
    assert lines[0] == "4 tasks, 2 seeds"
    assert lines[-2].startswith("| Best-of-N | 2 | 0.750 ")
    assert lines[-1].startswith("| AMC (1 seed) | 2 |")
    assert "| **+0.500 [+0.500, +0.500]** | **+0.250 [+0.250, +0.250]** (M = 3.0) |" in lines[-1]


def test_the_overview_has_a_row_for_each_page_with_a_link_to_it(page, tmp_path):
    rows = [{"label": name, "n": 2, "file": f"{name}.jsonl.gz", "method": name} for name in ("smc", "amc")]
    about = {"world": "A world", "policy": "a small one", "n": 2}
    (page / "rows.json").write_text(
        json.dumps({"pool": "pool.jsonl.gz", "sizes": [2], "rows": rows, "overview": about})
    )
    file = tmp_path / "docs" / "worlds.md"
    file.parent.mkdir()
    file.write_text("Text.\n<!-- overview -->\nold\n<!-- /overview -->\nMore.\n")
    tables.main("overview", str(file), str(page))
    before, *_, row, _, after = file.read_text().splitlines()
    assert (before, after) == ("Text.", "More.")
    # AMC's 30 calls pay for 3 of the pool's runs.
    assert row == (
        "| [A world](../results/world/README.md) | a small one | 4 | 2 | 0.250 | 0.500 | 0.750 | 1.000 "
        "| **+0.250 [+0.250, +0.250]** | +0.250 [-0.546, +1.046] |"
    )


def test_the_overview_finds_a_method_whose_name_ends_with_its_size(tmp_path):
    runs = [result(name, "t", [1.0] * size, calls=size) for name, size in (("amc", 15), ("amc-2", 2))]
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(asdict(run)) + "\n" for run in runs))
    tables.pack([tmp_path], tmp_path / "raw" / "test.jsonl.gz")
    rows = [{"n": size, "file": "test.jsonl.gz", "method": method} for size, method in ((15, "amc"), (2, "amc-2"))]
    shown = tables._shown(tmp_path, {"rows": rows, "overview": {"n": 2}}, "amc")
    assert [run.scores.particles for run in shown.values()] == [2]


def test_picks_that_saw_rewards_are_in_no_table_of_deployable_picks(tmp_path):
    pool = [result("best-of-n", f"t{number}", [1.0, 0.0], calls=4) for number in range(4)]
    picked = [replace(run, scores=replace(run.scores, deployable=float(number < 3))) for number, run in enumerate(pool)]
    amc = [replace(run, method="amc") for run in pool]
    for name, runs in {"pool": picked, "amc": amc}.items():
        (tmp_path / name).mkdir()
        lines = [json.dumps(asdict(run)) for run in runs]
        (tmp_path / name / "records.jsonl").write_text("\n".join(lines) + "\n")
        tables.pack([tmp_path / name], tmp_path / "raw" / f"{name}.jsonl.gz")
    row = {"label": "AMC", "n": 2, "file": "amc.jsonl.gz", "method": "amc"}
    (tmp_path / "rows.json").write_text(json.dumps({"pool": "pool.jsonl.gz", "sizes": [2], "rows": [row]}))
    assert tables.deployable(tmp_path).splitlines()[2:] == [
        "| Best-of-N | 2 | 0.750 ± 0.250 | +0.250 [-0.546, +1.046] |"
    ]


def test_a_row_is_compared_on_the_tasks_that_it_has():
    pool = {(f"t{n}", 0): result("best-of-n", f"t{n}", [float(n > 1), 0.0], calls=20) for n in range(4)}
    runs = {key: result("amc", key[0], [1.0], calls=10) for key in list(pool)[:2]}
    row = tables._row(pool, runs, {"label": "AMC", "n": 1})
    assert row.count("**+1.000 [+1.000, +1.000]**") == 2


def played(task, *, takes_sword):
    action, answer = ("take sword", "Taken.") if takes_sword else ("wait", "Time passes.")
    steps = (Step(action, answer), Step("go home", "You walk.", reward=float(takes_sword)))
    return Trajectory(Task(task, "Win."), steps)


def test_the_value_of_words_ranks_a_run_that_took_the_sword(tmp_path, monkeypatch):
    model = word_value
    runs = [played(f"t{number}", takes_sword=number % 2 == 0) for number in range(60)]
    file = tmp_path / "value.json"
    file.write_text(json.dumps({"weights": asdict(model.fit(runs))}))
    good, bad = (Trajectory(run.task, run.steps[:1]) for run in runs[:2])
    values = asyncio.run(model.WordValue(str(file)).values([good, bad]))
    assert values[0] > 0.6 > 0.4 > values[1]


def test_words_of_the_goal_are_the_same_feature_in_every_task():
    module = goal_value
    told = []
    for thing, place in (("plate", "sofa"), ("soap bar", "toilet")):
        steps = (
            Step(f"go to {place} 1", f"On the {place} 1, you see a {thing} 2, and a vase 1."),
            Step(f"take {thing} 2 from {place} 1", f"You pick up the {thing} 2."),
            Step("take vase 1 from shelf 1", "Nothing happens."),
        )
        task = Task("t", f"You see a {thing} 3.\nYour task is to: put some {thing} on {place}.")
        told.append([(step.action, step.observation) for step in module.relative(Trajectory(task, steps)).steps])
    assert told[0] == [
        ("goabout1", "on the goal you see a goal and a vase"),
        ("takeabout0", "you pick up the goal"),
        ("take", "nothing happens"),
    ]
    assert [action for action, _ in told[1]] == [action for action, _ in told[0]]


def test_methods_of_a_registered_world_are_named_with_size_and_critic(tmp_path, monkeypatch):
    module = registered
    tuned = {"smc": Tuned(temperature=0.8, steps=(6, 12), beta=0.1), "tot": Tuned(temperature=0.6)}
    plan = ComparisonPlan(methods=(), n_tasks=1)
    named = module.method_named("smc:5", plan, tuned)
    assert (named.name, named.n_particles, named.temperature) == ("smc-5", 5, 0.8)
    assert module.method_named("amc:7@uniform", plan, tuned).name == "amc-7-other"
    stopping = module.method_named("smc-stop:5", plan, tuned)
    assert (stopping.name, stopping.n_particles, stopping.temperature, stopping.stop_at) == ("smc-5-stop", 5, 0.8, 1.0)
    tree = module.method_named("tot:5x3", plan, tuned)
    assert (tree.name, tree.temperature, tree.tree.width, tree.tree.samples) == ("tot-5x3", 0.6, 5, 3)


def test_the_goal_is_its_own_line_or_the_last_line():
    module = goal_value
    assert module.goal_of("You play a game.\nGoal: take the key.\nYou are in a room.") == "Goal: take the key."
    assert module.goal_of("You are in a room.\n\nYour task is to: put a pen on a desk.").startswith("Your task is to")
