"""Whether a critic ranks siblings: against counting by hand, simple critics, and intervals of known coverage."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from rich.console import Console

from amc_agents.errors import ConfigurationError
from amc_agents.training import ranking as module
from amc_agents.training.metrics import print_ranking
from amc_agents.training.ranking import LEAST_TASKS, ranking
from amc_agents.types import Step, Task, Trajectory


def run(task, texts, outcome, *, done=True):
    steps = [Step("act", text) for text in texts]
    steps[-1] = replace(steps[-1], reward=outcome)
    return Trajectory(Task(task, f"Do {task}."), tuple(steps), done)


def siblings(n_tasks, per_task, rng, *, knows=1.0, steps=3):
    """Runs whose values are the outcome of the run, scaled by `knows`, plus noise; easy and difficult tasks."""
    for number in range(n_tasks):
        chance = rng.choice([0.2, 0.8])
        for index in range(per_task):
            outcome = float(rng.random() < chance)
            values = knows * outcome * (np.arange(steps + 1) > 0) + rng.normal(size=steps + 1)
            yield run(f"task {number}", [f"{index} {t}" for t in range(steps)], outcome), values


def counted_by_hand(scored, *, same_task):
    """Right and all pairs of live states at the same step whose texts differ."""
    right = pairs = 0.0
    for (a, x), (b, y) in product(scored, scored):
        for t in range(min(len(a.steps), len(b.steps))):
            differ = a.prefix(t).steps != b.prefix(t).steps or a.task != b.task
            if differ and (a.task == b.task) == same_task and a.return_ > b.return_:
                pairs += 1
                right += 1.0 if x[t] > y[t] else 0.5 if x[t] == y[t] else 0.0
    return right / pairs, pairs


@pytest.mark.parametrize("per_task", [4, 1])
def test_the_auc_is_the_share_of_pairs_counted_by_hand(per_task):
    rng = np.random.default_rng(0)
    runs = [
        run(f"task {n % 8}", ["same", *(f"{n} {t}" for t in range(rng.integers(1, 4)))], float(rng.integers(3)))
        for n in range(8 * per_task)
    ]
    scored = [(each, np.round(rng.normal(size=len(each.steps) + 1), 1)) for each in runs]
    report = ranking(scored)
    expected, pairs = counted_by_hand(scored, same_task=per_task > 1)
    assert report.comparison == ("siblings" if per_task > 1 else "equal step")
    assert report.auc.mean == pytest.approx(expected)
    assert report.auc.pairs == pairs == sum(interval.pairs for interval in report.by_step.values())
    if per_task > 1:
        # Every first observation is the same: siblings differ from s_2 on.
        assert min(report.by_step) == 2
        assert report.at_end is not None
    else:
        assert min(report.by_step) == 0


def test_a_critic_that_knows_the_task_alone_does_not_rank_siblings():
    rng = np.random.default_rng(1)
    scored = [(each, np.full(4, float(each.task.id[-1]))) for each, _ in siblings(60, 4, rng)]
    report = ranking(scored)
    assert (report.auc.mean, report.verdict) == (0.5, "undecided")
    assert report.sentences[0].startswith("There is no evidence that it ranks siblings. Of two runs of a task")


def test_a_critic_that_ranks_siblings_does_so_in_words_and_json():
    report = ranking(siblings(60, 4, np.random.default_rng(2)))
    assert report.verdict == "ranks"
    assert 0.6 < report.auc.low < report.auc.mean < report.auc.high < 0.9
    assert report.auc.tasks > 20
    assert report.unbeaten == []
    assert report.sentences[0].startswith("It ranks siblings.")
    plain = json.loads(json.dumps(report.as_plain(), allow_nan=False))
    assert plain["by_step"]["1"]["pairs"] == report.by_step[1].pairs
    assert plain["rivals"]["step number"]["auc"]["mean"] == 0.5


def test_a_critic_turned_round_is_said_to_be():
    scored = [(each, -values) for each, values in siblings(60, 4, np.random.default_rng(2))]
    report = ranking(scored)
    assert report.verdict == "reversed"
    assert "the wrong way round" in report.sentences[0]


def test_without_siblings_a_critic_of_the_instruction_is_found_out():
    rng = np.random.default_rng(3)
    knows_task, knows_run = [], []
    for number in range(200):
        easy, luck = rng.random() < 0.5, rng.random()
        each = run(f"task {number}", ["a", "b", "c"], float(luck < (0.8 if easy else 0.2)))
        knows_task.append((each, easy + 0.1 * rng.normal(size=4)))
        knows_run.append((each, np.array([easy, *(easy - 2 * luck + 0.1 * rng.normal(size=3))])))
    confounded = ranking(knows_task)
    assert confounded.auc.low > 0.7
    assert (confounded.comparison, confounded.verdict) == ("equal step", "confounded")
    assert confounded.unbeaten == ["instruction"]
    assert "may know only the instruction" in confounded.sentences[1]
    assert "Siblings cannot be compared" in confounded.sentences[0]
    knowing = ranking(knows_run)
    assert (knowing.verdict, knowing.unbeaten) == ("ranks", [])
    assert "It beats critics of the instruction, the length and the step number alone" in knowing.sentences[1]


def test_without_siblings_a_critic_of_the_length_is_found_out():
    rng = np.random.default_rng(4)
    scored = []
    for number in range(120):
        good = rng.random() < 0.5
        texts = ["x" * int(rng.integers(10, 40) + (0 if good else 25)) for _ in range(3)]
        each = run(f"task {number:03}", texts, float(good))
        lengths = np.cumsum([0, *map(len, texts)])
        scored.append((each, -lengths.astype(float)))
    report = ranking(scored)
    assert report.auc.low > 0.6
    assert (report.verdict, report.unbeaten) == ("confounded", ["length"])
    # Shorter is better here: the rival takes the better direction.
    assert report.rivals["length"].auc.mean > 0.6
    assert report.rivals["length"].lead.mean == pytest.approx(0.0)


def test_a_length_that_ranks_siblings_is_mentioned():
    scored = []
    for number in range(60):
        for good in (True, False):
            each = run(f"task {number}", ["x" * (5 if good else 9)] * 3, float(good))
            scored.append((each, np.array([0.0, *([float(good)] * 3)])))
    report = ranking(scored)
    assert report.verdict == "ranks"
    assert "The length of the text alone ranks 100.0% of pairs" in report.sentences[1]


def test_a_length_that_ranks_nothing_is_not_mentioned():
    rng = np.random.default_rng(2)
    scored = []
    for number in range(16):
        for _ in range(4):
            outcome = float(rng.random() < 0.5)
            texts = ["x" * int(rng.integers(5, 90)) for _ in range(2)]
            scored.append((run(f"task {number}", texts, outcome), np.array([0, *(outcome + rng.normal(size=2))])))
    report = ranking(scored)
    # With few tasks, the lead over the length is uncertain, but the length alone ranks nothing.
    assert (report.verdict, report.unbeaten) == ("ranks", ["length"])
    assert report.rivals["length"].auc.low < 0.5
    assert len(report.sentences) == 1


def test_the_return_so_far_is_added_to_a_value_of_the_future():
    scored = []
    for number in range(LEAST_TASKS):
        early, late = (
            Trajectory(
                Task(f"t{number}", "go"), tuple(Step("a", f"{n}{r}", reward=r) for n, r in enumerate(rewards)), True
            )
            for rewards in ([2.0, 0.0], [0.0, 1.0])
        )
        scored += [(early, np.array([1.5, 0.0, 0.0])), (late, np.array([1.5, 1.0, 0.0]))]
    assert ranking(scored, predicts="future").auc.mean == 1.0
    assert ranking(scored, predicts="return").auc.mean == 0.0
    assert ranking(scored, predicts="future").at_end is None


def test_unfinished_runs_and_unknown_outcomes_do_not_count():
    scored = list(siblings(10, 2, np.random.default_rng(5)))
    more = [(run("task 0", ["new"], math.nan), np.zeros(2)), (run("task 0", ["new"], 1.0, done=False), np.zeros(2))]
    assert ranking([*scored, *more]) == ranking(scored)
    nothing = ranking(more)
    assert (nothing.comparison, nothing.auc, nothing.verdict) == ("nothing", None, "too few")
    assert nothing.sentences[0].startswith("Whether it ranks runs is unknown")
    assert ranking([]).verdict == "too few"


def test_equal_outcomes_cannot_be_ranked():
    scored = [(run(f"t{n}", ["a", "b"], 1.0), np.zeros(3)) for n in range(20)]
    assert ranking(scored).comparison == "nothing"


def test_few_tasks_give_no_verdict():
    scored = [(run(f"t{n}", ["a", "b"], float(n % 2)), np.full(3, float(n % 2))) for n in range(LEAST_TASKS - 1)]
    report = ranking(scored)
    assert (report.verdict, report.auc.mean) == ("too few", 1.0)
    assert "too few tasks for a verdict" in report.sentences[1]


@pytest.mark.thorough
@pytest.mark.parametrize(("n_tasks", "per_task"), [(12, 4), (60, 2), (25, 1)])
def test_intervals_of_a_critic_that_knows_nothing_contain_one_half(n_tasks, per_task):
    covered = 0
    for seed in range(60):
        rng = np.random.default_rng([n_tasks, seed])
        auc = ranking(siblings(n_tasks, per_task, rng, knows=0.0, steps=2), seed=seed).auc
        covered += auc.low <= 0.5 <= auc.high
    # 57 of 60 are expected; fewer than 52 have a probability of 0.4% at 95%.
    assert covered >= 52


def test_large_groups_are_sampled(monkeypatch):
    monkeypatch.setattr(module, "_MOST", 50)
    report = ranking(siblings(300, 1, np.random.default_rng(6)))
    assert all(interval.tasks <= 50 for interval in report.by_step.values())
    assert report == ranking(siblings(300, 1, np.random.default_rng(6)))
    monkeypatch.undo()
    assert ranking(siblings(300, 1, np.random.default_rng(6))).by_step[1].tasks == 300


def test_wrong_arguments_are_refused():
    with pytest.raises(ConfigurationError, match="of 2 steps has 2 values: expected 3"):
        ranking([(run("t", ["a", "b"], 1.0), np.zeros(2))])
    with pytest.raises(ConfigurationError, match="expected 'return' or 'future'"):
        ranking([], predicts="returns")


def printed(report):
    console = Console(width=120, record=True, file=io.StringIO())
    print_ranking(report.as_plain(), console)
    return " ".join(console.export_text().split())


def test_the_printed_report_begins_with_the_answer():
    text = printed(ranking(siblings(60, 4, np.random.default_rng(2))))
    assert text.startswith("It ranks siblings. Of two runs of a task, the better one has the higher value in")
    assert "AUC of runs of the same task at the same step" in text
    for row in ("all steps", "step 1", "final states", "a critic of the length alone", "lead over the instruction"):
        assert row in text
    assert "of different tasks at the same step" in printed(ranking(siblings(30, 1, np.random.default_rng(2))))
    assert printed(ranking([])) == ranking([]).sentences[0]
