"""Replays of logged runs: against brute force, against simulation, and the command on a dataset of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest

from amc_agents.errors import ConfigurationError
from amc_agents.operations.advise import advise
from amc_agents.operations.advise.advice_page import advice_page
from amc_agents.operations.advise.advising import code_of
from amc_agents.operations.advise.recommending import interval, recommend, rows_of, simultaneous_low
from amc_agents.operations.advise.replay import Prefixes, Replayed, early_stops, replay
from amc_agents.operations.advise.runs import Runs, TaskRuns, closing_actions, read_runs
from amc_agents.training.dataset import LoggedTrajectory, replace_dataset
from amc_agents.types import Step, Task, Trajectory


def run(task, outcome, n_steps=2, last="submit", *, text="x"):
    steps = [Step(f"look {number}", text, text) for number in range(n_steps - 1)]
    return Trajectory(Task(task, "Do it."), (*steps, Step(last, "bye", text, outcome)), done=True)


def logged(trajectory, group=0, *, started="", ended="", **more):
    origin = {"imported": {"started": started, "ended": ended, **more}}
    return LoggedTrajectory(trajectory, group, settings=json.dumps(origin))


def task_runs(success, *, steps=None, tokens=None, seconds=None, answers=None, name="t"):
    n = len(success)
    steps = np.array(steps if steps is not None else range(1, n + 1), dtype=float)
    return TaskRuns(
        name,
        tuple(run(name, value, int(count)) for value, count in zip(success, steps, strict=True)),
        np.array(success, dtype=float),
        steps,
        np.array(tokens if tokens is not None else 10 * steps, dtype=float),
        np.full(n, np.nan),
        np.array(seconds if seconds is not None else steps, dtype=float),
        np.ones(n, dtype=bool),
        tuple(answers if answers is not None else map(str, range(n))),
    )


def figures(task, name, k, scores=None):
    """Success, tokens and seconds of a method on one task."""
    (found,) = [each for each in replay(Runs((task,), "text", 0), scores) if (each.name, each.k) == (name, k)]
    return float(found.success[0]), float(found.tokens[0]), float(found.seconds[0])


TASK = task_runs([0, 1, 1, 0], steps=[4, 2, 3, 8], seconds=[9, 5, 6, 7], tokens=[40, 20, 30, 80], answers="abba")


@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize(
    ("name", "field"), [("race-clock", "seconds"), ("race-steps", "steps"), ("race-tokens", "tokens")]
)
def test_a_race_is_the_mean_over_all_subsets(name, field, k):
    success, tokens, seconds = [], [], []
    measure = getattr(TASK, field)
    for subset in combinations(range(4), k):
        first = min(subset, key=lambda index: measure[index])
        share = {index: measure[first] / measure[index] for index in subset}
        success.append(TASK.success[first])
        tokens.append(sum(TASK.tokens[index] * share[index] for index in subset))
        seconds.append(max(TASK.seconds[index] * share[index] for index in subset))
    assert figures(TASK, name, k) == pytest.approx([np.mean(success), np.mean(tokens), np.mean(seconds)])


def test_selection_waits_for_all_runs():
    assert figures(TASK, "shortest", 4) == (1.0, 170.0, 9.0)
    assert figures(TASK, "longest", 4) == (0.0, 170.0, 9.0)
    assert figures(TASK, "known-best", 2)[0] == pytest.approx(5 / 6)
    assert figures(TASK, "critic:own", 4, {"own": [np.array([0.0, 1, 3, 2])]})[0] == 1.0
    assert figures(TASK, "critic:own", 4, {"own": [np.array([0.0, 0, 0, 0])]})[0] == 0.5


def test_a_vote_draws_among_the_answers_with_most_votes():
    assert figures(TASK, "vote", 4)[0] == 0.5
    assert figures(TASK, "vote", 3)[0] == pytest.approx(0.5)
    three = task_runs([1, 1, 0], answers="aab")
    assert figures(three, "vote", 3)[0] == 1.0
    assert figures(three, "vote", 2)[0] == pytest.approx((1 + 0.5 + 0.5) / 3)


def test_early_stops_are_the_mean_over_all_orders():
    task = task_runs([0, 1, 1, 0], steps=[4, 4, 4, 4], tokens=[40, 20, 30, 80], seconds=[4, 4, 4, 4])
    other = replace(task, task="u")
    # The same scores in both tasks, so the threshold of one is that of the other; it stops runs 0 and 3.
    scores = np.array([0.0, 1.0, 1.0, 0.1])
    prefixes = Prefixes({1: (scores, scores)})
    for attempts in (1, 2, 3):
        found = early_stops(Runs((task, other), "text", 0), prefixes, np.array([0, 1]), attempts=attempts)
        success, tokens = [], []
        for order in permutations(range(4)):
            spent = 0.0
            for attempt, index in enumerate(order[:attempts]):
                stopped = scores[index] < 0.5 and (attempts == 1 or attempt < attempts - 1)
                spent += task.tokens[index] * (0.25 if stopped else 1)
                if not stopped or attempts == 1:
                    success.append(0.0 if stopped else task.success[index])
                    break
            tokens.append(spent)
        assert found.success[0] == pytest.approx(np.mean(success))
        assert found.tokens[0] == pytest.approx(np.mean(tokens))


def test_an_early_stop_that_would_lose_too_much_is_not_chosen():
    task = task_runs([1, 1, 1, 1], steps=[4] * 4)
    scores = np.array([0.0, 1, 2, 3])
    found = early_stops(Runs((task, task), "text", 0), Prefixes({1: (scores, scores)}), np.array([0, 1]))
    assert found.success.tolist() == [1, 1]
    assert found.tokens.tolist() == [40, 40]


def test_the_agents_way_of_ending_is_found():
    runs = [run("t", 1, last="submit") for _ in range(8)] + [run("t", 0, last=f"look {n}") for n in range(12)]
    assert closing_actions(runs) == {"submit"}
    assert closing_actions([run("t", 1, last="look 0"), run("t", 1, last="look 0")]) == frozenset()


@pytest.mark.parametrize("n_tasks", [20, 50, 90])
def test_intervals_cover_the_truth(n_tasks):
    # Most tasks do not differ, as in real logs; of 600 intervals, 5% may miss (3.5 standard errors: .031).
    rng = np.random.default_rng(n_tasks)
    values, shares = np.array([0.0, 0.5, -0.5, 0.8]), [0.75, 0.15, 0.05, 0.05]
    truth = values @ shares
    covered = [
        low <= truth <= high for low, high in (interval(rng.choice(values, n_tasks, p=shares)) for _ in range(600))
    ]
    assert np.mean(covered) >= 0.95 - 0.031


def method(name, success, k=2, **more):
    nothing = np.full(len(success), np.nan)
    return Replayed(name, k, np.array(success, dtype=float), nothing, nothing, nothing, **more)


def test_the_best_of_many_useless_methods_is_not_recommended():
    # 40 datasets of 30 methods that are no better: 2.5% may be recommended, and more than 5 of 40 in 0.1% of seeds.
    recommended = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        single = method("single", np.full(60, 0.5), 1)
        others = [method(f"m{number}", 0.5 + 0.3 * rng.standard_normal(60)) for number in range(30)]
        recommended += recommend([single, *others], seed=seed) is not None
    assert recommended <= 5


def test_the_figures_of_the_recommendation_are_not_flattered_by_the_choice():
    # 30 methods of equal worth, +0.2: the best looks better than that, and the cross-fitted figures do not.
    flattered, honest = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        single = method("single", np.full(60, 0.5), 1)
        others = [method(f"m{number}", 0.7 + 0.3 * rng.standard_normal(60)) for number in range(30)]
        row = recommend([single, *others], seed=seed)
        assert row is not None
        honest.append(row.difference)
        flattered.append(max(each.difference for each in rows_of([single, *others])))
    # The standard error of the mean of 20 such differences is 0.3 / sqrt(60 x 20) = .009.
    assert np.mean(honest) - 0.2 < 3.5 * 0.009
    assert np.mean(flattered) > 0.2 + 3.5 * 0.009


def test_a_method_that_reads_the_outcome_is_never_recommended():
    single = method("single", np.full(40, 0.5), 1)
    assert recommend([single, method("known-best", np.ones(40), deployable=False)]) is None


def test_bounds_that_hold_for_all_methods_are_lower():
    rng = np.random.default_rng(1)
    differences = rng.standard_normal((20, 50)) / 3
    alone = np.array([interval(row)[0] for row in differences])
    assert (simultaneous_low(differences) < alone).all()


def dataset(folder, n_tasks=20):
    """Runs that fail when they say so in their last thought, and take longer."""
    rng = np.random.default_rng(0)
    records = []
    for task in range(n_tasks):
        for group in range(4):
            good = bool(rng.random() < 0.5)
            thought = "it holds" if good else "it melts"
            trajectory = run(f"task-{task:02d}", float(good), n_steps=int(rng.integers(3, 6)), text=thought)
            minutes = rng.integers(5, 20) + (0 if good else 20)
            records.append(
                logged(trajectory, group, started="2026-01-01T10:00:00", ended=f"2026-01-01T10:{minutes:02d}:00")
            )
    replace_dataset(folder, records)
    return folder


def test_a_dataset_gives_rows_a_recommendation_and_code(tmp_path):
    pytest.importorskip("sklearn")
    advice = advise(dataset(tmp_path / "data"))
    plain = advice.as_plain()
    assert (plain["tasks"], plain["runs"]) == (20, 80)
    assert {row["name"] for row in plain["methods"]} >= {
        "single", "submitted", "race-clock", "race-steps", "race-tokens", "shortest", "longest", "critic:quick",
        "early-stop", "known-best",
    }  # fmt: skip
    assert plain["recommendation"]["low"] > 0
    assert advice.quick is not None
    assert advice.quick.refusal is None
    assert dict(advice.quick.explained)["thought: melts"] < 0
    assert advice.code.startswith("graph = amc(agent, ")
    page = advice_page(advice, "data")
    assert "task-00" not in page
    assert "http" not in page.replace("http-equiv", "")


def test_without_a_difference_nothing_is_recommended(tmp_path):
    records = [logged(run(f"t{task}", float((task + group) % 2)), group) for task in range(20) for group in range(2)]
    replace_dataset(tmp_path, records)
    assert advise(tmp_path).recommendation is None
    assert code_of(None) == ""


def test_one_run_a_task_says_what_is_missing(tmp_path):
    replace_dataset(tmp_path, [logged(run(f"t{task}", float(task % 2))) for task in range(20)])
    advice = advise(tmp_path)
    assert advice.recommendation is None
    assert "have one run" in advice.notes[0]
    assert "log at least 2" in advice.notes[0]


def test_unknown_outcomes_are_left_out(tmp_path):
    replace_dataset(tmp_path, [logged(run("t", 1.0)), logged(run("t", float("nan")), 1)])
    assert (read_runs(tmp_path).n_runs, read_runs(tmp_path).unknown) == (1, 1)
    replace_dataset(tmp_path, [logged(run("t", float("nan")))])
    with pytest.raises(ConfigurationError, match=r"none of the 1 runs .* has a known outcome"):
        read_runs(tmp_path)


def test_times_and_counts_of_the_log_are_read(tmp_path):
    moments = {"started": "2026-01-01T10:00:00Z", "ended": "2026-01-01T10:01:30Z"}
    replace_dataset(
        tmp_path, [logged(run("t", 1.0), **moments, tokens=500, cost=0.25), logged(run("t", 0.0), 1, tokens=10)]
    )
    (task,) = read_runs(tmp_path).tasks
    assert task.seconds[0] == 90
    assert np.isnan(task.seconds[1])
    assert task.tokens.tolist() == [500, 10]
    assert task.cost[0] == 0.25
    assert "race-clock" not in {each.name for each in replay(read_runs(tmp_path))}
