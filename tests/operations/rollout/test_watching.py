import numpy as np
import pytest

from amc_agents.operations.rollout.call_records import Records
from amc_agents.operations.rollout.canary_comparison import Design, compare_arms, complete_units, watch
from amc_agents.operations.rollout.canary_report import read_report
from tests.operations.rollout.bank import most

DESIGN = Design(window=0.0)


def served(outcomes, values=None, n_particles=None):
    """Calls of `better`, each of a user of its own."""
    values = [None] * len(outcomes) if values is None else values
    sizes = [4] * len(outcomes) if n_particles is None else n_particles
    calls = [
        {"id": f"r{i}", "key": f"k{i}", "started": float(i), "arm": "better", "served": "better", "share": 0.9,
         "value": None if value is None else float(value), "n_particles": int(size)}
        for i, (value, size) in enumerate(zip(values, sizes, strict=True))
    ]  # fmt: skip
    return calls, {f"r{i}": float(outcome) for i, outcome in enumerate(outcomes)}


def watched(given, size, floor):
    calls, outcomes = given
    return watch(calls, outcomes, DESIGN, size, floor)


def test_only_the_newest_block_is_watched():
    calls, outcomes = served([1] * 100 + [0] * 50)
    newest = watch(calls, outcomes, DESIGN, 100, 0.9)
    assert (newest.n, newest.block, newest.mean_outcome) == (50, 2, 0.0)
    assert "below" in (newest.alarm or "")
    assert watch(calls[:100], outcomes, DESIGN, 100, 0.9).alarm is None


@pytest.mark.thorough
def test_a_level_at_the_bound_rarely_raises_an_alarm():
    rng = np.random.default_rng(0)
    alarms = sum(
        any(
            watched(served((np.random.default_rng([seed, 1]).random(400) < 0.5)[:n]), 100, 0.5).alarm is not None
            for n in range(100, 401, 100)
        )
        for seed in rng.integers(1000, size=100)
    )
    assert alarms <= most(100, 0.05)


def test_values_that_rank_backwards_raise_an_alarm_and_values_that_rank_do_not():
    rng = np.random.default_rng(1)
    outcomes = (rng.random(200) < 0.5).astype(float)
    noise = 0.3 * rng.normal(size=200)
    assert "backwards" in (watched(served(outcomes, 1 - outcomes + noise), 200, None).alarm or "")
    good = watched(served(outcomes, outcomes + noise), 200, None)
    assert good.alarm is None
    assert good.ranking is not None
    assert good.ranking.auc > 0.9
    assert good.bias == pytest.approx(noise.mean())


def test_over_optimisation_is_reported_by_value_and_by_size():
    rng = np.random.default_rng(2)
    values = rng.random(400)
    chance = np.where(values > 0.8, 0.2, values)
    calls, outcomes = served(rng.random(400) < chance, values, np.where(values > 0.5, 16, 4))
    newest = watch(calls, outcomes, DESIGN, 400, None)
    assert "over-optimisation" in newest.warnings[0]
    assert [row[0] for row in newest.by_size] == [4, 16]
    assert newest.by_size[1][2] > newest.by_size[0][2]
    fine = watched(served(rng.random(400) < values, values), 400, None)
    assert fine.warnings == ()


def test_a_key_with_many_calls_counts_once_in_the_level():
    calls, outcomes = served([0.0] * 90 + [1.0] * 10)
    for call in calls[:90]:
        call["key"] = "one user"
    assert watch(calls, outcomes, DESIGN, 100, None).mean_outcome == pytest.approx(10 / 11, abs=0.05)


def test_outcomes_of_any_range_are_reported_in_their_units():
    design = Design(outcomes=(-10.0, 30.0), window=0.0)
    rng = np.random.default_rng(3)
    calls, outcomes = [], {}
    for i in range(600):
        arm = "better" if rng.random() < 0.5 else "plain"
        calls.append({"id": f"r{i}", "key": f"k{i}", "started": float(i), "arm": arm, "served": arm, "share": 0.5,
                      "seconds": 1.0, "tokens": 5})  # fmt: skip
        outcomes[f"r{i}"] = 20.0 if arm == "better" else 10.0
    counted = [unit for _, unit in complete_units(calls, outcomes, design, 1e9)]
    compared = compare_arms(counted, calls, outcomes, design, 1e9)
    assert (compared.arms["better"].mean_outcome, compared.arms["plain"].mean_outcome) == (20.0, 10.0)
    assert compared.low <= 10.0 <= compared.high
    assert compared.verdict == "better"


def test_the_bound_of_the_newest_level_comes_from_the_plain_arm(tmp_path):
    records = Records(tmp_path, "canary")
    records.fact_or("design", {"outcomes": (0.0, 1.0), "window": 0.0, "alpha": 0.05})
    records.set_fact("settings", {"share": 0.5, "floor": None, "watch": 50})
    for i in range(400):
        arm = ("plain", "better")[i % 2]
        records.add_call(f"r{i}", float(i), {"key": f"k{i}", "arm": arm, "served": arm, "share": 0.5, "seconds": 1.0,
                                             "tokens": 5, "thread": ""})  # fmt: skip
    records.add_outcomes({f"r{i}": (0.7, 1.0)[i % 2] for i in range(300)})
    report = read_report(records)
    assert report.stopped is None
    assert report.floor is not None
    assert 0.5 < report.floor < 0.7
    records.add_outcomes({f"r{i}": (0.7, 0.1)[i % 2] for i in range(300, 400)})
    report = read_report(records)
    assert "newest calls is below" in (report.stopped or "")
