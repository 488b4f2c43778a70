import numpy as np
import pytest

from amc_agents.operations.rollout.call_records import Records
from amc_agents.operations.rollout.confidence import rank
from amc_agents.operations.rollout.shadow_report import judge, read_report
from amc_agents.training.metrics import auc
from tests.operations.rollout.bank import most


def draw(rng, n_keys, shift, spread=0.0):
    """Values that rank outcomes by `shift`, in keys of two calls that share a part of both."""
    groups = np.repeat(np.arange(n_keys), 2)
    outcomes = (rng.random(n_keys) < 0.5)[groups].astype(float)
    values = shift * outcomes + rng.normal(size=len(groups)) + spread * rng.normal(size=n_keys)[groups]
    return values, outcomes, groups


def test_the_ranking_is_the_auc_and_its_interval_respects_the_keys():
    rng = np.random.default_rng(0)
    truth = rank(*draw(np.random.default_rng(1), 40_000, 0.5, 1.0)).auc
    missed = 0
    for _ in range(200):
        values, outcomes, groups = draw(rng, 80, 0.5, 1.0)
        ranking = rank(values, outcomes, groups)
        assert ranking.auc == pytest.approx(auc(values, outcomes))
        missed += not ranking.low <= truth <= ranking.high
    # The interval is asymptotic: allow 7% instead of its 5%. Without the keys, it would miss about 16%.
    assert missed <= most(200, 0.07, tail=1e-3)


def test_repeated_calls_of_a_key_do_not_narrow_the_interval():
    values, outcomes, groups = draw(np.random.default_rng(5), 60, 0.5)
    values, outcomes = values[::2], outcomes[::2]
    alone = rank(values, outcomes, groups[::2])
    repeated = rank(*(np.repeat(each, 3) for each in (values, outcomes, groups[::2])))
    assert (repeated.low, repeated.auc, repeated.high) == pytest.approx((alone.low, alone.auc, alone.high))


def test_too_few_keys_give_no_ranking():
    values, outcomes, groups = draw(np.random.default_rng(2), 12, 1.0)
    assert rank(values, outcomes, groups) is None
    assert rank(np.arange(40.0), np.ones(40), np.arange(40)) is None


def test_a_perfect_ranking_has_an_interval():
    ranking = rank(np.arange(40.0), (np.arange(40) > 19).astype(float), np.arange(40))
    assert (ranking.auc, ranking.high) == (1.0, 1.0)
    assert 0.9 < ranking.low < 1.0


@pytest.mark.parametrize(
    ("n_keys", "shift", "verdict"),
    [
        (400, 1.0, "start a canary"),
        (4000, -0.5, "do not"),
        (4000, 0.0, "do not"),
        (30, 0.3, "not yet"),
        (4, 1.0, "not yet"),
    ],
)
def test_the_verdict_follows_the_interval(n_keys, shift, verdict):
    values, outcomes, groups = draw(np.random.default_rng(3), n_keys, shift)
    said, why, n_more = judge(rank(values, outcomes, groups), outcomes)
    assert (said, n_more is not None) == (verdict, verdict == "not yet"), why
    assert n_more is None or n_more > 0


def test_outcomes_join_late_by_run_and_by_thread(tmp_path):
    records, rng = Records(tmp_path, "shadow"), np.random.default_rng(4)
    for i in range(100):
        body = {"key": f"t{i}", "thread": f"t{i}", "value": float(i > 50) + 0.1 * rng.normal(), "best_value": 1.0,
                "differs": i % 4 == 0, "at_door": False, "seconds": 1.0, "tokens": 10, "dollars": 0.1,
                "search_seconds": 3.0, "search_tokens": 30, "search_dollars": None}  # fmt: skip
        records.add_call(f"r{i}", float(i), body)
    assert read_report(tmp_path).verdict == "not yet"
    joined = {(f"r{i}" if i % 2 else f"t{i}"): float(i > 50) for i in range(100)}
    report = read_report(tmp_path, joined)
    assert (report.verdict, report.n_outcomes, report.differs) == ("start a canary", 100, 0.25)
    assert "3 times the tokens" in str(report)
    assert "100 served answers with outcomes; the interval holds for one look" in str(report)
    assert abs(report.bias) < 0.1
    assert "unknown dollars" in str(report)  # No search has a known cost: the mean of nothing is not 0.
