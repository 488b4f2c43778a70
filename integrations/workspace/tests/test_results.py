"""The published figures follow from the published runs."""

import gzip
import json
from pathlib import Path

import pytest

from amc_agents.bench.records import RunResult
from reproduce.coding import compare

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "docs/results/workspace"


def runs(name):
    with gzip.open(RESULTS / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [RunResult.from_json(json.loads(line)) for line in file]


def test_the_results_follow_from_the_runs():
    published = json.loads((RESULTS / "results.json").read_text())
    amc, pool = runs("amc"), runs("best-of-n")
    assert len(amc) == len({run.task for run in amc}) == published["bugs"] == 100
    assert {run.task for run in amc} == {run.task for run in pool}
    recomputed = compare.report(amc, pool)
    for key in ("policy_calls", "best_of_n_runs"):
        assert recomputed[key] == pytest.approx(published[key])
    for key in ("difference", "mean_particle_difference"):
        assert recomputed[key] == pytest.approx(published[key])
    for key in ("success", "mean_particle"):
        for method, values in published[key].items():
            assert recomputed[key][method] == pytest.approx(values)


def test_best_of_n_makes_as_many_calls_as_amc():
    amc, pool = runs("amc"), runs("best-of-n")
    per_run = sum(run.cost.policy_calls / len(run.particles.returns) for run in pool) / len(pool)
    assert compare.matched(amc, pool) * per_run == pytest.approx(compare.calls_of(amc))


@pytest.mark.parametrize("page", ["docs/results/workspace/README.md", "integrations/workspace/README.md"])
def test_the_pages_state_the_published_figures(page):
    published, text = json.loads((RESULTS / "results.json").read_text()), (ROOT / page).read_text()
    for estimate in published["success"].values():
        assert f"{estimate['mean']:.3f} ± {estimate['standard_error']:.3f}".replace("0.", ".") in text
    gain = published["difference"]
    figures = f"+{gain['difference']:.3f} [{gain['low']:.3f}, {gain['high']:.3f}]".replace("0.", ".")
    assert figures in text
    assert "**The policy is scripted" in text


def test_the_chosen_settings_are_the_best_of_those_tried():
    tuning = json.loads((RESULTS / "tuning.json").read_text())
    for method, setting in tuning["chosen"].items():
        tried = [row for row in tuning["tried"] if (row["interval"] is None) == (method == "best-of-n")]
        best = max(tried, key=lambda row: row["success"])
        assert {name: best[name] for name in setting} == setting
