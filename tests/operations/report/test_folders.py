from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from amc_agents.bench.tuned import read_tuning
from amc_agents.cli.tune import _table
from amc_agents.errors import CheckpointError, ConfigurationError, MissingExtra
from amc_agents.operations import report
from amc_agents.operations.report import parts
from amc_agents.operations.report.dataset_page import Summary, dataset_page
from amc_agents.operations.report.tune_page import headline, tune_page
from amc_agents.training.dataset import LoggedTrajectory, write_shard
from amc_agents.training.score_file import score_metrics
from amc_agents.training.scoring import score, score_ranking
from amc_agents.types import Task
from tests.operations.page.conftest import HOSTILE, played
from tests.operations.page.test_run_page import _Attributes
from tests.operations.report.charts import specs
from tests.operations.report.test_bench_page import printed


@pytest.fixture(autouse=True)
def no_library(monkeypatch):
    """Bundling the library takes seconds."""
    monkeypatch.setattr(report, "library", lambda: "")


def dataset(folder, text="", outcomes=(1.0, 0.0, None)):
    records = [
        LoggedTrajectory(played("a", "b", reward=float("nan") if outcome is None else outcome, text=text), group)
        for group, outcome in enumerate(outcomes)
    ]
    write_shard(folder, records)
    return folder


def test_each_kind_of_folder_is_recognised(bench_folder, tune_folder, make_run, tmp_path):
    make_run().save(tmp_path / "run")
    pages = {
        "Comparison of methods": bench_folder(),
        "Tuning in the world": tune_folder(),
        "Dataset of trajectories": dataset(tmp_path / "data"),
        "One run of AMC": tmp_path / "run",
    }
    make_run().save(pages["Comparison of methods"])
    for kicker, folder in pages.items():
        assert kicker in report.report_page(folder)


def test_another_folder_is_an_error_that_names_what_is_looked_for(tmp_path):
    with pytest.raises(
        ConfigurationError, match=r"tuning\.json \(amc tune\).*records.*parquet.*run\.json \(run\.save\)"
    ) as raised:
        report.report_page(tmp_path)
    assert len(str(raised.value)) - len(str(tmp_path)) <= 400
    with pytest.raises(ConfigurationError, match="not a folder"):
        report.report_page(tmp_path / "missing")


def test_the_folder_of_an_exploration_is_no_comparison(bench_folder):
    folder = bench_folder(complete=False)
    settings = json.loads((folder / "settings.json").read_text())
    settings["settings"]["n_episodes"] = 3
    (folder / "settings.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigurationError, match="holds no results"):
        report.report_page(folder)


def test_a_page_with_charts_needs_the_extra(monkeypatch):
    parts.library.cache_clear()
    monkeypatch.setattr(parts, "import_module", lambda name: (_ for _ in ()).throw(ModuleNotFoundError(name)))
    with pytest.raises(MissingExtra, match=r"amc-agents\[report\]"):
        parts.library()


# --- tuning -------------------------------------------------------------------------------------------------------


def test_every_figure_of_the_tuning_is_on_its_page(tune_folder):
    folder = tune_folder()
    page = tune_page(folder, "")
    tuning, _ = read_tuning(folder / "tuning.json")
    assert "0.700 ± 0.050" in printed(_table(tuning))
    assert "0.700 ± 0.050" in page
    assert "4 settings were tried on 8 training tasks" in page


def test_the_picks_of_a_tuning_are_not_mixed(tune_folder):
    page = tune_page(tune_folder(), "")
    drawn = dict(specs(page).pairs)
    assert {row["method"] for row in drawn["Deployable pick"]["data"]["values"]} == {"amc-hidden"}
    assert {row["method"] for row in drawn["Oracle's pick"]["data"]["values"]} == {"amc", "amc-hidden"}


def test_the_headline_of_a_tuning_names_the_deployable_pick(tune_folder):
    tuning, _ = read_tuning(tune_folder() / "tuning.json")
    assert headline(tuning).startswith("amc-hidden: temperature 0.8, resampling after 2; deployable pick 0.480 [")


def test_a_damaged_tuning_is_refused(tune_folder):
    folder = tune_folder()
    (folder / "tuning.json").write_text('{"cells": 3}')
    with pytest.raises(CheckpointError, match=r"tuning\.json"):
        tune_page(folder, "")


# --- datasets -----------------------------------------------------------------------------------------------------


def test_an_unknown_outcome_is_not_counted(tmp_path):
    folder = dataset(tmp_path / "data")
    summary, page = Summary.of(folder), dataset_page(folder, "")
    assert list(summary.outcomes.values()) == [1.0, 0.0]
    assert summary.undecided_tasks == 1
    assert "3 trajectories of 1 tasks, 2 of them with a known outcome." in page
    assert "outcome unknown" in page


def test_a_dataset_without_outcomes_has_a_page(tmp_path):
    page = dataset_page(dataset(tmp_path / "data", outcomes=(None, None)), "")
    assert "No outcome is known yet" in page


class Better:
    """A critic that has a higher value for the action `good`."""

    predicts = "return"

    async def values(self, trajectories):
        return np.array([0.5 * sum(step.action == "good" for step in each.steps) for each in trajectories])


def scored_dataset(folder):
    """Eight tasks, each with a good and a bad trajectory, and their scores."""
    for i in range(8):
        records = [
            LoggedTrajectory(replace(played(action, "end", reward=reward), task=Task(f"t{i}", f"Do {i}.")), group)
            for group, (action, reward) in enumerate((("good", 1.0), ("bad", 0.0)))
        ]
        write_shard(folder, records)
    score(Better(), folder, folder / "scores.parquet")
    return folder


def test_a_critic_is_reported_as_amc_score_prints_it(tmp_path):
    folder = scored_dataset(tmp_path / "data")
    page = dataset_page(folder, "")
    ranking = score_ranking(folder / "scores.parquet", folder)
    assert ranking.verdict == "ranks"
    assert ranking.sentences[0] in page
    assert f"{score_metrics(folder / 'scores.parquet')['pearson']:.4g}" in page
    drawn = dict(specs(page).pairs)
    assert [row["mean"] for row in drawn["Ranking by step"]["data"]["values"]] == [1.0]
    assert [row["predicted"] for row in drawn["Calibration"]["layer"][1]["data"]["values"]] == [0.0, 0.5]


def test_what_an_import_refused_is_listed(tmp_path):
    folder = dataset(tmp_path / "data")
    (folder / "refused.jsonl").write_text(json.dumps({"where": "line 3", "reason": f"bad{HOSTILE}"}) + "\n")
    (folder / "import-report.json").write_text(json.dumps({"trajectories": 3, "refused": 1, "reasons": {"bad": 1}}))
    page = dataset_page(folder, "")
    assert "line 3" in page
    assert "Refused: 1 x bad" in page


def test_a_damaged_import_report_is_refused(tmp_path):
    folder = dataset(tmp_path / "data")
    (folder / "import-report.json").write_text('{"surprise": 1}')
    with pytest.raises(CheckpointError, match="not the report of an import"):
        dataset_page(folder, "")


def test_examples_come_from_all_of_the_data(tmp_path):
    summary = Summary()
    for number in range(300):
        summary.add(LoggedTrajectory(played("a"), number), number)
    chosen = [record.group for record in summary.examples]
    assert len(chosen) == len(set(chosen)) == 12
    assert max(chosen) > 200


def test_no_text_of_a_dataset_or_a_tuning_becomes_markup(tmp_path, tune_folder):
    for page in (dataset_page(dataset(tmp_path / "data", HOSTILE), ""), tune_page(tune_folder(HOSTILE), "")):
        parser = _Attributes()
        parser.feed(page)
        assert "img" not in parser.tags


@pytest.mark.parametrize("value", [None, "x", [], {}, float("nan"), -7])
@pytest.mark.parametrize(
    "place", ["best", "best_index", "history", "usage", "population.trajectories", "population.returns", "config"]
)
def test_a_damaged_run_is_a_page_or_a_named_error(make_run, tmp_path, place, value):
    make_run().save(tmp_path)
    file = tmp_path / "run.json"
    stored = json.loads(file.read_text())
    *path, last = place.split(".")
    at = stored
    for name in path:
        at = at[name]
    at[last] = value
    file.write_text(json.dumps(stored))
    try:
        assert "</html>" in report.report_page(tmp_path)
    except CheckpointError as error:
        assert str(tmp_path) in str(error)  # noqa: PT017  # either outcome is right
    else:
        assert place not in ("best", "population.trajectories") or value not in (None, "x")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"scores": {"oracle": "high"}}, "oracle is 'high': expected a finite number"),
        ({"scores": {"mean": float("nan")}}, "mean is nan"),
        ({"cost": {"seconds": True}}, "seconds is True"),
        ({"scores": None}, "object"),
        ({"method": ["x"]}, "expected a method, a task and a seed"),
        ({"particles": 3}, "int"),
        (b"\xff", "UnicodeDecodeError"),
        (b"[" * 100_000, "recursion"),
        (b"[1]", "list"),
    ],
)
def test_a_damaged_record_is_named_with_its_line(bench_folder, change, part):
    folder = bench_folder()
    file = next(folder.glob("records*.jsonl"))
    first, second, *rest = file.read_bytes().splitlines()
    if isinstance(change, dict):
        stored = json.loads(second)
        merged = {k: {**stored[k], **v} if isinstance(v, dict) else v for k, v in change.items()}
        change = json.dumps({**stored, **merged}).encode()
    file.write_bytes(b"\n".join([first, change, *rest, b""]))
    with pytest.raises(CheckpointError, match="line 2, is not a record") as raised:
        report.report_page(folder)
    assert part in str(raised.value)
