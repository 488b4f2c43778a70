from __future__ import annotations

import numpy as np
import pytest

from amc_agents.operations.report import report_page
from amc_agents.operations.report.rollout_page import rollout_page
from amc_agents.operations.rollout import canary_report, shadow_report
from amc_agents.operations.rollout.call_records import Records
from tests.operations.page.conftest import HOSTILE
from tests.operations.page.test_run_page import _Attributes
from tests.operations.report.charts import specs


@pytest.fixture
def shadow_folder(tmp_path):
    """Makes the folder of a shadow whose critic ranks the served answers."""

    def make(text=""):
        records, rng = Records(tmp_path, "shadow"), np.random.default_rng(4)
        for i in range(100):
            body = {"key": f"t{i}", "thread": f"t{i}", "value": float(i > 50) + 0.1 * rng.normal(), "best_value": 1.0,
                    "differs": i % 4 == 0, "at_door": False, "seconds": 1.0, "tokens": 10, "dollars": 0.1,
                    "search_seconds": 3.0, "search_tokens": 30, "search_dollars": None}  # fmt: skip
            records.add_call(f"r{i}", float(i), body)
        records.add_call("bad", 200.0, {"key": "bad", "search_failed": f"OSError{text}"})
        records.add_to("counts", {"calls": 400, "sampled": 101})
        records.add_outcomes({f"r{i}": float(i > 50) for i in range(100)})
        records.close()
        return tmp_path

    return make


@pytest.fixture
def canary_folder(tmp_path):
    """The folder of a canary in which `better` lifts the outcome from .2 to .9."""
    return canary_in(tmp_path)


def canary_in(folder):
    """Write such a canary."""
    records, rng = Records(folder, "canary"), np.random.default_rng(5)
    records.set_fact("design", {"outcomes": [0.0, 1.0], "window": 10.0, "alpha": 0.05})
    records.set_fact("settings", {"share": 0.5, "watch": 200})
    for i in range(600):
        arm = "better" if i % 2 else "plain"
        outcome = float(rng.random() < (0.9 if arm == "better" else 0.2))
        body = {"key": f"k{i}", "thread": None, "arm": arm, "served": arm, "share": 0.5, "seconds": 1.0 + i % 3,
                "tokens": 100, "dollars": None, "value": outcome if arm == "better" else None,
                "n_particles": 4}  # fmt: skip
        records.add_call(f"r{i}", float(i), body)
        records.add_outcomes({f"r{i}": outcome})
    records.close()
    return folder


def test_a_shadow_shows_what_its_report_says(shadow_folder):
    folder = shadow_folder()
    page = rollout_page(folder, "")
    report = shadow_report.read_report(folder)
    assert "Start a canary: the critic ranks served answers" in page
    assert str(report.ranking) in page
    assert [bin["predicted"] for bin in dict(specs(page).pairs)["Calibration"]["layer"][1]["data"]["values"]] == [
        pytest.approx(bin.predicted, abs=1e-5) for bin in report.bins
    ]
    assert "No lift is claimed" in page
    assert "OSError" in page


def test_a_canary_shows_its_lift_at_all_times(canary_folder):
    page = rollout_page(canary_folder, "")
    report = canary_report.read_report(canary_folder)
    found = report.comparison
    assert found.verdict == "better"
    assert f"Better: lift {found.lift:+.3f}, interval [{found.low:+.3f}, {found.high:+.3f}]" in page.replace(
        '<span class="whole">', ""
    ).replace("</span>", "")
    drawn = dict(specs(page).pairs)["Lift"]["data"]["values"]
    assert drawn[-1]["x"] == found.n_counted == 600
    assert [drawn[-1][name] for name in ("mean", "low", "high")] == [
        pytest.approx(value) for value in (found.lift, found.low, found.high)
    ]
    assert drawn[0]["low"] <= drawn[-1]["low"]
    for arm in found.arms.values():
        assert f"{arm.mean_outcome:.3g}" in page


def test_both_are_recognised(canary_folder, monkeypatch):
    monkeypatch.setattr("amc_agents.operations.report.library", lambda: "")
    assert "Canary" in report_page(canary_folder)


def test_an_empty_canary_has_a_page(tmp_path):
    Records(tmp_path, "canary").close()
    assert "no key is counted yet" in rollout_page(tmp_path, "")


def test_no_text_of_a_rollout_becomes_markup(shadow_folder):
    parser = _Attributes()
    parser.feed(rollout_page(shadow_folder(HOSTILE), ""))
    assert "img" not in parser.tags
