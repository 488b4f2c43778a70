"""The study's tables, from shards that are packed by hand: who is compared with whom, and what the numbers are."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from amc_agents.bench.records import Cost, Particles, RunResult, Scores

STUDY = Path(__file__).parents[1] / "study"
MODULES = {
    name: importlib.import_module(f"reproduce.study.{name}")
    for name in (
        "settings",
        "table_rows",
        "packed",
        "subsampling",
        "crossed",
        "results",
        "ablations",
        "ablation_tables",
        "budget",
        "populations",
        "finished",
        "room",
        "room_tables",
        "figures",
        "strata",
        "curve",
        "summary",
        "report",
    )
}
TASKS = ("a", "b", "c", "d")
SUCCESSES = {"a": 0, "b": 1, "c": 10, "d": 20}
"""Of each task's pool of 20."""
COST = {"policy_calls": 200, "policy_output_tokens": 4000, "critic_calls": 40, "critic_tokens": 1000}


@pytest.fixture
def study(monkeypatch, tmp_path):
    """The study's modules, working in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    return MODULES


def record(method, task, oracle, *, top5=0.5, hidden=False, pool=0, particles=15):
    scores = Scores(
        oracle=oracle, success=oracle, deployable=oracle if hidden else None, top5=top5, mean=oracle / 2,
        top5_distinct=0.0, mean_distinct=oracle / 4, weighted_mean=0.0, particles=particles, distinct=particles,
    )  # fmt: skip
    cost = Cost(**{one.name: COST.get(one.name, 0) for one in fields(Cost)})
    returns = tuple([1.0] * SUCCESSES[task] + [0.0] * (pool - SUCCESSES[task])) if pool else (oracle,)
    seen = Particles(returns, returns, tuple(range(len(returns))))
    return RunResult(method, task, 0, scores, cost, (), seen)


def pack(study, group, seed, records, regime="tuned", policy=0):
    shard = study["settings"].Shard("hard", regime, group, policy, seed)
    study["packed"].pack(shard.name, {"settings": {}, "methods": {}}, records)


def packed_band(study):
    for seed, gain in ((0, 1.0), (1, 0.0)):
        pool = [record("tuned-pool", task, 0.0, pool=20) for task in TASKS]
        alone = [record("react-greedy", task, float(task == "d"), particles=1) for task in TASKS]
        pack(study, "pool", seed, pool + alone)
        # The first seed's AMC solves all tasks, the second's none.
        pack(study, "amc", seed, [record("tuned-amc-15", task, gain) for task in TASKS])


def test_best_of_15_comes_from_the_pool_and_amc_is_paired_with_it(study):
    packed_band(study)
    told = study["report"].summary(study["results"].read("hard"))
    # One success among 20 is in 15 of 20 subsets of 15; of 10 or 20 there is always one.
    best = (0 + 0.75 + 1 + 1) / 4
    assert told["scores"]["tuned-best-of-15"]["oracle"]["mean"] == pytest.approx(best)
    assert told["scores"]["tuned-best-of-20"]["oracle"]["mean"] == pytest.approx(0.75)
    assert told["scores"]["react-greedy"]["oracle"]["mean"] == pytest.approx(0.25)
    found = {(one["a"], one["b"], one["metric"]): one for one in told["differences"]}
    pick = found["tuned-amc-15", "tuned-best-of-15", "oracle"]
    assert pick["difference"] == pytest.approx(0.5 - best)
    np.testing.assert_allclose(pick["of_each_seed"], [1 - best, -best], atol=1e-4)
    # Over tasks, whose seeds are averaged, it is less uncertain than over seeds, which disagree.
    assert pick["low_crossed"] < pick["low"] < pick["high"] < pick["high_crossed"]


def test_the_two_runs_of_amc_are_averaged_where_the_pick_does_not_matter(study):
    seen = [record("tuned-amc-15", task, 1.0) for task in TASKS]
    pack(study, "amc", 0, seen + [record("tuned-amc-hidden-15", task, 0.5, hidden=True) for task in TASKS])
    scores = study["results"].read("hard").scores["tuned-amc-both-15"]
    assert set(scores) == {"oracle", "top5", "mean", "mean_distinct"}
    assert scores["oracle"].scores == {(task, 0): 0.75 for task in TASKS}


def test_strata_are_counted_in_the_other_seeds_pool(study, monkeypatch):
    for seed, successes in ((0, SUCCESSES), (1, {**SUCCESSES, "a": 20, "d": 0})):
        monkeypatch.setitem(globals(), "SUCCESSES", successes)
        pack(study, "pool", seed, [record("tuned-pool", task, 0.0, pool=20) for task in TASKS])
        amc = [record(name, task, 1.0) for name in ("tuned-amc-15", "tuned-amc-hidden-15") for task in TASKS]
        pack(study, "amc", seed, amc)
    found = study["strata"].strata(study["results"].read("hard"), "tuned")
    picks = {one["stratum"]: one for one in found if one["metric"] == "oracle"}
    # "never": a of seed 1 (no success in seed 0, 20 of its own), and d of seed 0, the other way round.
    assert picks[0]["best_of_15"] == 1.0
    assert 1 not in picks  # b alone: one task has no interval
    # Always or often: c twice, a of seed 0 and d of seed 1, without a success of their own.
    assert picks[3]["best_of_15"] == pytest.approx((1.0 + 0.0 + 0.0) / 3)
    assert picks[3]["difference"] == pytest.approx(2 / 3)
    text = study["strata"].strata_tables({"tuned": found})
    assert "| tuned | never | 2 | 1.000 | 1.000 | +0.000 [+0.000, +0.000]" in text


def test_a_share_of_the_pool_costs_its_share(study):
    packed_band(study)
    costs = study["results"].read("hard").costs
    assert costs["tuned-best-of-5"]["policy_calls"] == pytest.approx(50)
    assert costs["tuned-best-of-20"]["critic_tokens"] == pytest.approx(1000)
    assert costs["tuned-amc-15"]["policy_calls"] == pytest.approx(200)


def test_another_policy_has_its_own_tables(study):
    packed_band(study)
    pack(study, "amc", 0, [record("tuned-amc-15", task, 1.0) for task in TASKS], policy=1)
    read = study["results"].read
    assert set(read("hard", 1).scores) == {"tuned-amc-15"}
    assert read("hard", 1).scores["tuned-amc-15"]["oracle"].scores == {(task, 0): 1.0 for task in TASKS}
    assert {seed for _, seed in read("hard").scores["tuned-amc-15"]["oracle"].scores} == {0, 1}


def test_one_trajectory_at_temperature_1_is_the_pools_mean(study):
    pack(study, "pool", 0, [record("hot-pool", task, 0.0, pool=20) for task in TASKS], "hot")
    cells = study["results"].read("hard")
    assert cells.scores["hot-react"]["oracle"].scores == {(task, 0): SUCCESSES[task] / 20 for task in TASKS}
    assert cells.costs["hot-react"]["critic_tokens"] == 0.0
    assert cells.costs["hot-react"]["policy_calls"] == pytest.approx(10)


@pytest.mark.thorough
def test_the_report_is_written_with_what_is_there(study, monkeypatch, capsys):
    packed_band(study)
    settings = {"temperature": 0.4, "resample": "AtSteps(6)", "beta": 0.1}
    pairs = (("chosen", 1.0), ("mean-beta-1", 0.25))
    records = [record(name, task, score, top5=score) for task in TASKS for name, score in pairs]
    methods = {"chosen": settings, "mean-beta-1": {**settings, "beta": 1.0}}
    study["packed"].pack("ablation-weighing", {"settings": {}, "methods": methods}, records)
    monkeypatch.setattr(sys, "argv", ["report.py", "--out", "told"])
    study["report"].main()
    text = Path("told/tables.md").read_text()
    assert "| AMC - Best-of-15 | oracle's pick | -0.188 |" in text
    assert "| +0.312, -0.688 |" in text
    assert "| mean-beta-1 | 0.250 ± 0.000 | **-0.750 [-0.750, -0.750]** |" in text
    assert text.strip() in f"# The study's tables\n\n{capsys.readouterr().out}"
    plain = json.loads(Path("told/results.json").read_text())
    assert set(plain) == {"12 to 16 optimal steps", "room", "finished", "curve", "strata", "ablations"}
    assert Path("told/curve.png").stat().st_size > 5000


def summary_lines(study, band="hard"):
    runs = list(study["results"].records(band))
    told = study["report"].summary(study["results"].read(band), runs)
    return study["summary"].summary_table({"easy": told}).splitlines()


def test_the_summary_has_a_line_for_each_world_and_regime(study):
    packed_band(study)
    head, rule, line, _, note = summary_lines(study)
    assert head.count("|") == rule.count("|") == line.count("|")
    assert line.startswith("| easy, 4 x 2 seeds | tuned | .250 ± .250 | .688 ± .237 | .500 ± .000 | -.188 [")
    assert "0.36 M parameters" in note


def test_an_interval_without_0_is_heavy(study):
    pack(study, "pool", 0, [record("hot-pool", task, 0.0, pool=20) for task in TASKS], "hot")
    pack(study, "amc", 0, [record("hot-amc-15", task, 3.0) for task in TASKS], "hot")
    line = summary_lines(study)[2]
    assert "| easy, 4 x 1 seed | temperature 1 |  |" in line
    assert "| **+2.312 [" in line
    assert line.split(" | ")[2] == ""  # greedy play has not been run


def test_the_summary_gives_the_interval_over_training_seeds_if_there_are_several(study):
    packed_band(study)
    line = summary_lines(study)[2]
    pick = study["report"].summary(study["results"].read("hard"))["differences"][0]
    assert f"-.188 [{pick['low_crossed']:.3f}, {pick['high_crossed']:.3f}]" in line


def test_a_method_is_compared_with_the_tries_that_its_tokens_pay_for(study):
    # A try writes 200 tokens; AMC writes 4,000 and its critic reads 1,000: 25 tries, of 40 in two pools.
    packed_band(study)
    (found,) = study["budget"].budget(study["results"].records("hard"))
    assert (found["tokens"], found["tries"]) == (5000, 25)
    # b: 2 successes among 40, both among the 15 that are left out with probability 15/40 x 14/39.
    best = (0 + (1 - 15 * 14 / (40 * 39)) + 1 + 1) / 4
    assert found["best_of_n"] == pytest.approx(best)
    assert found["oracle"]["difference"] == pytest.approx(0.5 - best)


def test_a_budget_above_the_pool_is_shown(study):
    pack(study, "pool", 0, [record("tuned-pool", task, 0.0, pool=20) for task in TASKS])
    pack(study, "amc", 0, [record("tuned-amc-15", task, 1.0) for task in TASKS])
    found = study["budget"].budget(study["results"].records("hard"))
    assert (found[0]["tries"], found[0]["affordable"]) == (20, 25)
    assert "| 5,000 | 20.0 (of 25.0) | 0.750 | 1.000 |" in study["budget"].budget_table({"easy": found})


def test_a_population_is_counted_with_its_copies(study):
    pack(study, "pool", 0, [record("tuned-pool", task, 0.0, pool=20) for task in TASKS])
    copies = Particles((1.0, 1.0, 0.0), (0.9, 0.9, 0.1), (0, 0, 2))
    runs = [replace(record("tuned-amc-15", task, 1.0, particles=3), particles=copies) for task in TASKS]
    pack(study, "amc", 0, runs)
    (found,) = study["populations"].populations(study["results"].records("hard"))
    assert (found["particles"], found["most"], found["distinct_successes"]) == (3, 3, 1)
    # Of a pool of 20 different trajectories 15 are in: three quarters of 0, 1, 10 and 20 successes.
    assert found["of_tries"] == pytest.approx(0.75 * 31 / 4)
    assert found["auc"] == 1.0  # a pool's values are its returns here


def test_uninformative_final_values_have_an_auc_of_one_half(study):
    blind = Particles((1.0, 0.0, 1.0, 0.0), (0.5, 0.5, 0.5, 0.5), (0, 1, 2, 3))
    mixed = Particles((1.0, 0.0, 1.0, 0.0), (0.9, 0.5, 0.5, 0.1), (0, 1, 2, 3))
    assert study["populations"].auc([blind]) == 0.5
    # Of four pairs of a success and a failure three are in order and one is tied.
    assert study["populations"].auc([mixed]) == pytest.approx(3.5 / 4)


def test_kept_particles_are_compared_at_equal_policy_calls(study):
    calls = {"tuned-amc-keep-15": 200, "tuned-amc-15": 300, "tuned-amc-10": 100}
    scores = {"tuned-amc-keep-15": 1.0, "tuned-amc-15": 0.75, "tuned-amc-10": 0.25}
    for group, name in (("keep", "tuned-amc-keep-15"), ("amc", "tuned-amc-15"), ("curve", "tuned-amc-10")):
        runs = [record(name, task, scores[name]) for task in TASKS]
        pack(study, group, 0, [replace(one, cost=replace(one.cost, policy_calls=calls[name])) for one in runs])
    found = study["finished"].finished(study["results"].records("hard"))["tuned"]
    assert found["policy_calls"] == 200
    # Halfway between 100 and 300 calls.
    assert found["scores"]["oracle"]["retire"] == pytest.approx(0.5)
    assert found["scores"]["oracle"]["change"]["difference"] == pytest.approx(0.5)
    assert found["scores"]["distinct"]["keep"] == 1
    text = study["finished"].finished_table({"tuned": found})
    assert "| tuned | 4 x 1 | 200 | oracle's pick | 1.000 | 0.500 | +0.500 [" in text


def test_kept_particles_are_not_compared_where_no_two_sizes_bracket_their_calls(study):
    pack(study, "keep", 0, [record("tuned-amc-keep-15", task, 1.0) for task in TASKS])
    pack(study, "amc", 0, [record("tuned-amc-15", task, 1.0) for task in TASKS])
    assert study["finished"].finished(study["results"].records("hard")) == {}


def test_holm_corrects_for_every_comparison(study):
    assert study["ablation_tables"].holm([0.03, 0.01, 0.04]) == pytest.approx([0.06, 0.03, 0.06])


def test_the_curve_pairs_each_size_with_its_own_subsets(study):
    packed_band(study)
    pack(study, "curve", 0, [record("tuned-amc-5", task, 1.0, particles=5) for task in TASKS])
    found = {one["n"]: one for one in study["curve"].curve(study["results"].read("hard"))}
    assert set(found) == {5, 15}
    # b: a fourth of the subsets of 5 have its one success; c: nearly all have one of its ten.
    misses = np.prod([(10 - i) / (20 - i) for i in range(5)])
    best = (0 + 0.25 + (1 - misses) + 1) / 4
    assert found[5]["best_of_n"]["oracle"]["mean"] == pytest.approx(best)
    assert found[5]["differences"]["oracle"]["difference"] == pytest.approx(1 - best)
    # Seed 1 has been run at 15 alone: the sizes of a curve share their seeds.
    assert [found[size]["differences"]["oracle"]["n_seeds"] for size in (5, 15)] == [1, 1]
    assert found[15]["amc"]["oracle"]["mean"] == 1.0
    assert f"| tuned | 5 | 4 x 1 | {best:.3f} | 1.000 | +{1 - best:.3f} [" in study["curve"].curve_table([found[5]])


@pytest.mark.parametrize(
    ("page", "table"),
    [
        ("docs/results/study/README.md", "summary.md"),
        ("docs/results/study/README.md", "room.md"),
    ],
)
def test_a_page_contains_the_committed_table(page, table):
    root = STUDY.parent.parent
    assert (root / "docs/results/study" / table).read_text() in (root / page).read_text()


def test_an_oracle_is_compared_with_subsets_of_the_same_pool(study):
    room = study["room"]
    pool = [record(room.POOL_NAME, task, 0.0, pool=60) for task in TASKS]
    oracles = [record(name, task, 1.0) for name in (room.AT_ITS_OWN, room.AT_STUDYS_SETTINGS) for task in TASKS]
    study["packed"].pack("room-0", {"settings": {}, "methods": {}}, pool + oracles)
    found = study["room_tables"].room()
    best = {n: found[f"Best-of-{n}"]["scores"]["oracle"]["mean"] for n in (15, 30, 60)}
    # b has one success in 60, d has 20: a subset of 15 misses them all with probability C(40, 15) / C(60, 15).
    misses = {hits: np.prod([(60 - hits - i) / (60 - i) for i in range(15)]) for hits in (1, 10, 20)}
    assert best[15] == pytest.approx((3 - sum(misses.values())) / 4)
    assert best[15] < best[30] < best[60] == 0.75
    oracle = found["AMC, oracle, settings of its own"]["changes"]["oracle"]["difference"]
    assert oracle == pytest.approx(1 - best[15])
    assert found["Best-of-15"]["policy_calls"] == 50
    text = study["room_tables"].room_table(found)
    assert text.startswith("4 fresh tasks")
    assert "| AMC, oracle, the study's settings | 200 | 1.000 ± 0.000 | +" in text


def test_the_ceiling_is_compared_with_best_of_15(study):
    pairs = (("chosen", 0.5), ("best-of-15", 0.25), ("planner", 1.0))
    records = [record(name, task, score, top5=score) for task in TASKS for name, score in pairs]
    settings = {"temperature": 0.4, "resample": "AtSteps(6)", "beta": 0.1}
    study["packed"].pack("ablation-ceiling", {"settings": {}, "methods": {n: settings for n, _ in pairs}}, records)
    told = study["ablation_tables"].read_ablations()
    text = study["ablation_tables"].ablation_tables(told)
    assert "| planner | 1.000 ± 0.000 | **+0.750 [+0.750, +0.750]** |" in text
    assert "| chosen | 0.500 ± 0.000 | **+0.250 [" in text
    assert "| best-of-15 | 0.250 ± 0.000 |  |" in text


def test_a_change_is_compared_with_every_run_of_the_chosen_setting(study):
    settings = {"temperature": 0.4, "resample": "AtSteps(6)", "beta": 0.1}
    groups = {
        "schedules": (("chosen", 0.5), ("at-3-6-9-12-15", 0.25), ("at-8", 1.0)),
        "resampling": (("chosen", 0.5), ("keep", 0.5)),
    }
    for group, pairs in groups.items():
        records = [record(name, task, score, top5=score) for task in TASKS for name, score in pairs]
        study["packed"].pack(f"ablation-{group}", {"settings": {}, "methods": {n: settings for n, _ in pairs}}, records)
    text = study["ablation_tables"].ablation_tables(study["ablation_tables"].read_ablations())
    assert "| at-8 | 1.000 ± 0.000 | **+0.625 [" in text
    assert "| keep | 0.500 ± 0.000 | **+0.125 [" in text
    assert "| at-3-6-9-12-15 | 0.250 ± 0.000 |  |" in text
    assert text.count("against its 2 plays with different random draws") == 2


def test_a_packed_shard_survives_a_round_trip(study):
    records = [record("tuned-amc-15", task, 1.0) for task in TASKS]
    pack(study, "amc", 2, records)
    told, found = study["packed"].unpack("hard-tuned-amc-policy0-seed2")
    assert told == {"settings": {}, "methods": {}}
    assert found == records
    first = study["packed"].packed("hard-tuned-amc-policy0-seed2").read_bytes()
    pack(study, "amc", 2, records[::-1])
    assert study["packed"].packed("hard-tuned-amc-policy0-seed2").read_bytes() == first


def test_every_shard_and_ablation_has_its_own_plan(study, monkeypatch):
    monkeypatch.chdir(STUDY.parent.parent)
    settings, ablations = study["settings"], study["ablations"]
    shards = [*settings.shards(), *ablations.ABLATIONS.values()]
    assert len({one.name for one in shards}) == len(shards)
    chosen = json.loads(settings.CHOSEN.read_text())
    for one in shards:
        band, regime = getattr(one, "band", ablations.BAND), getattr(one, "regime", settings.TUNED)
        if regime in chosen.get(band, {}):
            names = [method.name for method in one.plan.methods]
            assert len(set(names)) == len(names)
            assert all(method.temperature == 1.0 for method in one.plan.methods) or regime == settings.TUNED


def test_amc_that_keeps_finished_particles_differs_only_in_that(study, monkeypatch):
    monkeypatch.chdir(STUDY.parent.parent)
    shard = partial(study["settings"].Shard, "hard", "tuned", policy=0, seed=0)
    (keeps,), mine = shard(group="keep").plan.methods, shard(group="amc").plan.methods[0]
    assert (keeps.finished, mine.finished) == ("keep", "retire")
    assert replace(keeps, name=mine.name, finished=mine.finished) == mine


def test_another_policy_uses_its_own_settings_or_else_the_shipped_policys(study, monkeypatch, tmp_path):
    settings = study["settings"]
    one = {"temperature": 0.5, "steps": [3, 6], "beta": 0.1, "success_reward": None}
    chosen = {"hard": {"tuned": {"amc": one, "best-of-n": one}}}
    chosen["hard-policy1"] = {"tuned": {"best-of-n": one | {"temperature": 0.8}}}
    monkeypatch.setattr(settings, "CHOSEN", tmp_path / "chosen.json")
    settings.CHOSEN.write_text(json.dumps(chosen))
    temperatures = {
        policy: {name: found.temperature for name, found in settings.chosen_of("hard", "tuned", policy).items()}
        for policy in (0, 1)
    }
    assert temperatures == {0: {"amc": 0.5, "best-of-n": 0.5}, 1: {"amc": 0.5, "best-of-n": 0.8}}
