"""Figures of logged runs whose right values follow from arithmetic, and the page that shows them."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from amc_agents.operations.advise.runs import Runs
from reproduce.real_runs import measure, report
from tests.operations.test_advise import task_runs

TASK = task_runs([0.0, 1.0, 1.0], seconds=[10, 20, 40], tokens=[100, 200, 400])
RUNS = Runs((TASK, replace(TASK, success=np.array([1.0, 1.0, 0.0]))), "text", 0)


@pytest.mark.parametrize(
    ("rule", "values", "success", "tokens"),
    [
        (partial(measure.accepted, least=-np.inf), [0.0, 0.5, 1.0], 0, 100 + 200 * 10 / 20 + 400 * 10 / 40),
        (partial(measure.accepted, least=0.4), [0.0, 0.5, 1.0], 1, 100 + 200 + 400 * 20 / 40),
        (partial(measure.accepted, least=2), [0.0, 0.5, 1.0], 0, 700),
        (measure.by_itself, [0.0, 0.5, 1.0], 0, 300),
    ],
)
def test_a_rule_stops_the_other_runs_when_it_has_its_answer(rule, values, success, tokens):
    assert measure.played(TASK, rule, np.array(values), k=3) == pytest.approx((success, tokens))


def test_without_a_run_that_ends_by_itself_the_critic_chooses_after_the_end():
    cut_off = replace(TASK, by_itself=np.zeros(3, dtype=bool))
    assert measure.played(cut_off, measure.by_itself, np.array([0.0, 1.0, 0.5]), k=3) == (1, 700)


def test_scores_are_worth_the_pairs_that_they_order_and_the_runs_that_they_pick():
    scores = [np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, 1.0])]
    # First task: both pairs right. Second: one pair wrong, one tied.
    assert measure.auc_within(RUNS, scores) == pytest.approx([1, 0.25])
    worth = measure.worth(RUNS, scores)
    assert (worth["success"], worth["difference"]) == (pytest.approx((1 + 0.5) / 2), pytest.approx(0.75 - 2 / 3))


def test_the_page_is_written_from_the_results():
    figures = {"mean": 0.5, "low": -0.25, "high": 1.25, "tasks": 12}
    found = {"agent": {"critic": {"by_step": {"2": figures, "4": figures | {"tasks": 9}}}}}
    shown = "| agent | after steps | tasks | AUC within tasks |\n| --- | ---: | ---: | ---: |\n"
    assert report.steps(found) == shown + "| agent | 2 | 12 | .500 [-.250, 1.250] |\n"
    assert "+.500 [-.250, 1.250]" in report.within(figures, signed=True)
