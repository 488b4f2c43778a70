from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from amc_agents.bench.methods import best_of_n, lac, react, react_greedy, vote
from amc_agents.bench.records import Cost, RunResult, Scores
from amc_agents.bench.report import Results, results_schema, summarise
from amc_agents.bench.report_tables import main_differences, markdown
from amc_agents.bench.runner import compare
from amc_agents.cli.comparison import detail_table, difference_table, score_table
from amc_agents.errors import ConfigurationError


async def test_results_are_kept_as_json_with_their_schema(results, tmp_path):
    file = results.save(tmp_path / "results.json")
    assert Results.load(file) == results
    values = json.loads(file.read_text())
    assert values["methods"][0]["scores"]["oracle"].keys() == {"mean", "standard_error", "tasks", "seeds"}
    assert values["methods"][0]["scores"]["oracle"]["tasks"] == 4
    assert values["methods"][0]["scores"]["oracle"]["seeds"] == 2
    assert {"a", "b", "metric", "difference", "low", "high", "tasks", "seeds"} <= values["comparisons"][0].keys()
    properties = results_schema()["$defs"]["PairedDifference"]["properties"]
    assert properties.keys() == values["comparisons"][0].keys()


async def test_means_and_differences_agree(results):
    one = next(c for c in results.comparisons if (c.a, c.b, c.metric) == ("amc", "best-of-n", "mean"))
    amc, best = results.of("amc").scores["mean"], results.of("best-of-n").scores["mean"]
    assert one.difference == pytest.approx(amc.mean - best.mean)
    assert one.low <= one.difference <= one.high
    assert (one.tasks, one.seeds) == (4, 2)


async def test_oracle_and_deployable_are_never_mixed(results):
    assert "deployable" not in results.of("amc").scores
    assert "deployable" not in results.of("smc").scores
    assert "deployable" in results.of("amc-hidden").scores
    pairs = {(one.a, one.b) for one in results.comparisons if one.metric == "deployable"}
    assert not any("amc" in pair or "smc" in pair for pair in pairs)
    assert ("amc-hidden", "best-of-n") in pairs


async def test_tables_fit_a_terminal_of_80_columns(results):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(score_table(results))
    console.print(detail_table(results))
    console.print(difference_table(results))
    text = console.export_text()
    assert "…" not in text
    row = next(line for line in text.splitlines() if line.startswith("ReAct, greedy"))
    assert row.split() == ["ReAct,", "greedy", "1.000", "±", "0.000", "1.000", "±", "0.000", "-", "-"]
    assert "4 tasks, 2 seed(s), N = 4" in text


async def test_n_appears_only_for_methods_with_particles(results):
    methods = [one for one in results.methods if one.settings["n_particles"] == 1]
    single = results.model_copy(update={"methods": methods, "comparisons": []})
    assert single.methods
    assert "4 tasks, 2 seed(s); mean" in markdown(single)


async def test_markdown(results):
    text = markdown(results)
    lines = text.splitlines()
    assert lines[0].count("|") == lines[1].count("|") == lines[2].count("|")
    assert lines[3].startswith("| ReAct, greedy | 1.000 ± 0.000 | 1.000 ± 0.000 | - |")
    assert "| AMC - Best-of-N | oracle's pick |" in text


async def test_a_single_task_has_no_interval(make_comparison, tmp_path):
    comparison = make_comparison(1, [react(), best_of_n()])
    results = summarise(await compare(comparison, tmp_path), comparison.methods, comparison.settings)
    assert results.comparisons == []
    assert difference_table(results) is None
    assert "±" not in markdown(results).splitlines()[2]


def test_no_records_no_results():
    with pytest.raises(ConfigurationError, match="no records"):
        summarise([], [react()], {})


def test_the_published_schema_is_that_of_the_code(repository):
    assert json.loads((repository / "docs/results/schema.json").read_text()) == results_schema()


def record(method, task, return_):
    played = Scores(
        oracle=return_, success=float(return_ > 0), deployable=return_, top5=return_, mean=return_,
        top5_distinct=return_, mean_distinct=return_, weighted_mean=return_, particles=1, distinct=1,
    )  # fmt: skip
    return RunResult(method, task, 0, played, Cost(0, 0, 0, 0, 0, 0, 0, 0, 0.0))


def test_where_a_success_is_not_always_worth_the_same_both_are_compared_each_with_its_own_rival():
    # Greedy succeeds rarely and fast, the vote often and late.
    returns = {"react-greedy": [0.9, 0.0], "vote": [0.2, 0.2], "lac": [0.9, 0.2]}
    methods = [react_greedy(), vote(), lac()]
    records = [record(name, str(task), one) for name, both in returns.items() for task, one in enumerate(both)]
    results = summarise(records, methods, {"success": 0.1, "n_particles": 15, "settings_tried": {"vote": 4, "lac": 16}})
    asked = {(one.a, one.b, one.metric): one.difference for one in main_differences(results)}
    assert asked == {
        ("lac", "react-greedy", "deployable"): pytest.approx(0.1),
        ("lac", "vote", "success"): pytest.approx(0.0),
    }
    text = markdown(results)
    assert "| ReAct, greedy | 0.500 ± 0.500 | 0.450 ± 0.450 |" in text
    assert "Settings tried on training tasks: 20 (vote 4, lac 16)." in text
    assert "ReAct, greedy and vote: the best here of" in text
    console = Console(width=80, record=True, file=io.StringIO())
    populations = [replace(one, n_particles=None) for one in methods]
    console.print(score_table(summarise(records, populations, results.settings)))
    assert "…" not in console.export_text()
    # Where every success is worth 1, one of the two says it all.
    whole = [record(name, str(task), float(one > 0)) for name, both in returns.items() for task, one in enumerate(both)]
    assert "success" not in markdown(summarise(whole, methods, {"n_particles": 15}))


async def test_a_name_stays_in_its_cell(results):
    methods = [
        method.model_copy(update={"label": "a|b\nc \x1b[2J"}) if method.name == "amc" else method
        for method in results.methods
    ]
    text = markdown(results.model_copy(update={"methods": methods}))
    assert "\n| a\\|b c \\u001b[2J | " in text
    assert "\n| a\\|b c \\u001b[2J - " in text
