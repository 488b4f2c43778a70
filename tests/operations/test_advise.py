"""Replays of logged runs: against brute force, against simulation, and the command on a dataset of its own."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import combinations, permutations
from types import SimpleNamespace

import numpy as np
import pytest

from amc_agents import EarlyStop, Race
from amc_agents.errors import ConfigurationError, PopulationError
from amc_agents.operations.advise import advise
from amc_agents.operations.advise.advice_page import advice_page
from amc_agents.operations.advise.advising import _not_in_logs, code_of
from amc_agents.operations.advise.recommending import interval, recommend, rows_of, simultaneous_low
from amc_agents.operations.advise.replay import Prefixes, Replayed, early_stops, replay
from amc_agents.operations.advise.runs import Runs, TaskRuns, closing_actions, read_runs
from amc_agents.training.dataset import LoggedTrajectory, replace_dataset
from amc_agents.training.quick import Measured
from amc_agents.types import Step, Task, Trajectory
from tests.population.test_race import Judge, Runner, ask, chat
from tests.population.test_race import run as play


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


@pytest.mark.parametrize("k", [2, 3, 4])
def test_races_pick_at_run_time_what_the_replay_picks(k):
    # The outcome of a run is its number, so that the replay's mean outcome names the run that it picks.
    turns, sizes = [3, 1, 2, 7], [20, 60, 70, 13]
    steps, tokens = [turn + 1 for turn in turns], [(n + 1) * size for n, size in zip(turns, sizes, strict=True)]
    seconds = [0.3, 0.4, 0.1, 0.2]
    for subset in combinations(range(4), k):

        def of(values, subset=subset):
            return [values[number] for number in subset]

        task = task_runs(subset, steps=of(steps), tokens=of(tokens), seconds=of(seconds))
        for by in ("steps", "tokens"):
            picked = subset[int(ask(chat(of(turns), sizes=of(sizes)), k, race=Race(by=by)).best.answer)]
            assert picked == figures(task, f"race-{by}", k)[0]
        picked = subset[play(Runner([1] * k, sleep=of(seconds)), race=Race()).best_output["number"]]
        assert picked == figures(task, "race-clock", k)[0]


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_early_stops_at_run_time_are_those_of_the_replay(attempts):
    task = task_runs([0, 1, 1, 0], steps=[9, 2, 3, 12])
    worth = np.array([0.1, 0.9, 0.8, 0.2])
    found = early_stops(
        Runs((task, replace(task, task="u")), "logged", 0), Prefixes({1: (worth, worth)}), np.array([0, 1]),
        attempts=attempts,
    )  # fmt: skip
    assert found.stop is not None
    step, below = found.stop
    stop, success, steps = EarlyStop(at_step=step, below=below, restarts=attempts - 1), [], []
    for order in permutations(range(4)):
        runner = Runner([int(task.steps[number]) for number in order])
        try:
            answer = play(runner, n_particles=1, critic=Judge(worth[[*order]]), race=Race(stop=stop))
            success.append(task.success[order[answer.best_output["number"]]])
        except PopulationError:
            success.append(0.0)
        steps.append(runner.steps)
    assert found.success[0] == pytest.approx(np.mean(success))
    assert found.tokens[0] == pytest.approx(10 * np.mean(steps))


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


def dataset(folder, n_tasks=20, *, longer=0):
    """Runs that fail when they say so in their last thought, and take longer."""
    rng = np.random.default_rng(0)
    records = []
    for task in range(n_tasks):
        for group in range(4):
            good = bool(rng.random() < 0.5)
            thought = "it holds" if good else "it melts"
            trajectory = run(
                f"task-{task:02d}", float(good), n_steps=int(rng.integers(3, 6)) + (0 if good else longer), text=thought
            )
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


def test_one_run_a_task_says_what_is_missing_and_trains_a_critic_across_tasks(tmp_path):
    pytest.importorskip("sklearn")
    texts = {0.0: "it melts", 1.0: "it holds"}
    outcomes = [float(task % 2) for task in range(40)]
    runs = [run(f"t{task}", outcome, 6, text=texts[outcome]) for task, outcome in enumerate(outcomes)]
    replace_dataset(tmp_path, [logged(each) for each in runs])
    advice = advise(tmp_path)
    assert advice.recommendation is None
    assert "have one run" in advice.notes[0]
    # The outcomes' deviation is 0.5: (1.98 x 0.5 / 0.05)^2 = 394 tasks, of 4 runs each.
    assert "about 394 tasks, so about 1,536 more runs" in advice.notes[0]
    assert advice.quick is not None
    assert (advice.quick.siblings, advice.quick.refusal) == (False, None)
    assert advice.quick.auc is not None
    assert advice.quick.auc.low > 0.9
    assert "orders runs of all tasks that go on with an AUC of" in advice.notes[-1]


@pytest.mark.parametrize(("aucs", "verdict"), [({2: 0.51}, "above"), ({2: 0.51, 4: 0.3, 8: 0.3}, "not above")])
def test_an_auc_is_above_chance_only_after_a_correction_for_all_looks(aucs, verdict):
    rated = {step: Measured(low + 0.1, low, low + 0.2, 20) for step, low in aucs.items()}
    few = {64: Measured(0.9, 0.8, 1.0, 9)}
    note = _not_in_logs(SimpleNamespace(by_step=rated | few, siblings=True))
    assert f"steps: {verdict} chance" in note
    assert "after 64" not in note


def test_what_can_be_recommended_has_code(tmp_path):
    pytest.importorskip("sklearn")
    advice = advise(dataset(tmp_path / "data", 12, longer=12))
    single = advice.rows[0]
    assert (single.difference, single.low < 0 < single.high) == (0, True)
    for row in advice.rows[2:]:
        assert bool(code_of(row)) == row.deployable == (row.name not in ("known-best", "race-tokens"))
    assert 'race=Race(by="steps")' in code_of(next(row for row in advice.rows if row.name == "race-steps"))
    stops = [row for row in advice.rows if row.name == "early-stop"]
    assert [f"restarts={row.k - 1}" in code_of(row) for row in stops] == [False, True]
    assert advice.saving is not None
    assert advice.saving in stops
    scope = {"EarlyStop": EarlyStop, "Race": Race, "math": math, "amc": lambda agent, **settings: settings, "agent": 0}
    for row in advice.rows:
        exec(code_of(row).replace("resample=Never()", ""), scope)


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
