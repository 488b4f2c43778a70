from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from amc_agents.bench.methods import Tuned, amc, amc_hidden, best_of_n, chosen, judged, lac, react, smc
from amc_agents.bench.records import Cost, RunResult, Scores, read_run_results
from amc_agents.bench.results_folder import ResultsFolder, clear, demo_folder
from amc_agents.bench.runner import MethodEstimate, PlannedRuns, _times, compare, estimate_runs, run_one, run_seed
from amc_agents.bench.tuning import Grid, TuningSearch
from amc_agents.critics import spec
from amc_agents.errors import CheckpointError, ConfigurationError, CriticError
from amc_agents.smc import Never
from tests.bench.coins import BitWorld, ShareOfOnes


@pytest.mark.thorough
async def test_every_method_on_every_task_and_seed(make_comparison, tmp_path, six_methods):
    comparison = make_comparison(n_tasks=2, seeds=(0, 1))
    records = await compare(comparison, tmp_path)
    assert [record.key for record in records] == [item.key for item in comparison.items()]
    assert len(records) == 2 * 2 * 6
    assert {record.key for record in read_run_results(tmp_path)} == {r.key for r in records}
    greedy = [record for record in records if record.method == "react-greedy"]
    assert [record.scores.oracle for record in greedy] == [1.0] * 4
    by_method = {record.method: record.scores for record in records}
    assert {name for name, scores in by_method.items() if scores.deployable is None} == {"smc", "amc"}
    assert by_method["react"].particles == 1
    assert by_method["best-of-n"].particles == 4
    assert all(max(record.particles.returns) == record.scores.oracle for record in read_run_results(tmp_path))


def test_a_record_of_an_older_version_has_no_particles():
    scores = Scores(1.0, 1.0, None, 1.0, 1.0, 1.0, 1.0, 1.0, 1, 1)
    older = RunResult("react", "a task", 0, scores, Cost(1, 2, 3, 0, 0, 0, 0, 0, 0.5)).to_json()
    del older["particles"]
    assert RunResult.from_json(older).particles is None


async def test_a_method_may_have_its_own_scheme_and_keep_finished_particles(make_comparison, tmp_path, six_methods):
    usual = next(one for one in six_methods if one.name == "amc")
    other = replace(usual, name="other", scheme="multinomial", finished="keep")
    configs = {}
    comparison = make_comparison(n_tasks=1, methods=[usual, other])
    await compare(comparison, tmp_path, progress=lambda record, run: configs.update({record.method: run.config}))
    told = {name: (config["scheme"], config["finished"]) for name, config in configs.items()}
    assert told == {"amc": ("systematic", "retire"), "other": ("multinomial", "keep")}
    kept = comparison.method_settings
    assert (kept["other"]["scheme"], kept["other"]["finished"]) == ("multinomial", "keep")
    assert not {"scheme", "finished"} & kept["amc"].keys()  # as in folders of before


@pytest.mark.thorough
async def test_a_resumed_run_does_only_what_is_missing(make_comparison, tmp_path):
    first = await compare(make_comparison(n_tasks=2), tmp_path)
    started = BitWorld.started
    assert started > 0
    again = await compare(make_comparison(n_tasks=2), tmp_path, resume=True)
    assert BitWorld.started - started == 0
    assert again == first
    seen = []
    more = await compare(make_comparison(n_tasks=3), tmp_path, resume=True, progress=lambda r, _: seen.append(r.task))
    assert seen == ["bits/2"] * 6
    assert len(more) == 18


async def test_what_was_finished_before_an_error_is_kept(make_comparison, tmp_path):
    class Broken(BitWorld):
        async def step(self, action):
            if len(read_run_results(tmp_path)) >= 2:
                raise RuntimeError("the power is out")
            return await super().step(action)

    methods = [react()]
    with pytest.raises(Exception, match="the power is out"):
        await compare(make_comparison(4, methods, environment=Broken), tmp_path, n_concurrent=1)
    assert len(read_run_results(tmp_path)) == 2
    assert len(await compare(make_comparison(4, methods), tmp_path, resume=True)) == 4


async def test_a_torn_last_line_is_done_again(make_comparison, tmp_path):
    whole = await compare(make_comparison(2, [react()]), tmp_path)
    file = tmp_path / "records.jsonl"
    file.write_bytes(file.read_bytes()[:-40])
    assert len(read_run_results(tmp_path)) == 1
    again = await compare(make_comparison(2, [react()]), tmp_path, resume=True)
    assert [record.scores for record in again] == [record.scores for record in whole]
    assert len(file.read_text().splitlines()) == 2


async def test_a_broken_line_elsewhere_is_an_error(make_comparison, tmp_path):
    await compare(make_comparison(2, [react()]), tmp_path)
    file = tmp_path / "records.jsonl"
    file.write_text("{}\n" + file.read_text())
    with pytest.raises(CheckpointError, match="line 1"):
        read_run_results(tmp_path)


async def test_other_settings_are_refused_by_name(make_comparison, tmp_path):
    cold = [amc(Tuned(steps=(2,), beta=0.1))]
    await compare(make_comparison(1, cold), tmp_path)
    with pytest.raises(ConfigurationError, match="--resume"):
        await compare(make_comparison(1, cold), tmp_path)
    with pytest.raises(ConfigurationError, match="n_particles was 4, is 5"):
        await compare(make_comparison(1, cold, n_particles=5), tmp_path, resume=True)
    warm = [amc(Tuned(temperature=0.5, steps=(2,), beta=0.1))]
    with pytest.raises(ConfigurationError, match=r"amc: temperature was 1\.0, is 0\.5"):
        await compare(make_comparison(1, warm), tmp_path, resume=True)
    with pytest.raises(ConfigurationError, match="weights"):
        await compare(make_comparison(1, cold, about={"weights": "others"}), tmp_path, resume=True)


async def test_a_method_may_be_added_later(make_comparison, tmp_path):
    await compare(make_comparison(1, [react()]), tmp_path)
    records = await compare(make_comparison(1, [react(), best_of_n()]), tmp_path, resume=True)
    assert [record.method for record in records] == ["react", "best-of-n"]
    assert set(json.loads((tmp_path / "settings.json").read_text())["methods"]) == {"react", "best-of-n"}


async def test_workers_keep_files_of_their_own(make_comparison, tmp_path):
    comparison = make_comparison(2, [react()])
    for part in range(2):
        share = replace(comparison, tasks=comparison.tasks[part::2])
        await compare(share, tmp_path, resume=True, worker=f"{part}-of-2")
    assert len(list(tmp_path.glob("records-*.jsonl"))) == 2
    assert len(await compare(comparison, tmp_path, resume=True)) == 2
    clear(tmp_path)
    assert list(tmp_path.iterdir()) == []


async def test_a_run_is_reproducible_and_seeds_differ(make_comparison):
    comparison = make_comparison(1)
    method, task = comparison.methods[4], comparison.tasks[0]

    async def actions(seed):
        _, run = await run_one(comparison, seed, task, method)
        return [[step.action for step in one.steps] for one in run.population.trajectories]

    assert await actions(0) == await actions(0)
    assert await actions(0) != await actions(1)


def test_seeds_are_the_same_everywhere():
    assert run_seed(0, "bits/0", "amc") == run_seed(0, "bits/0", "amc") == 7271603803197068349
    seeds = {run_seed(s, f"t{t}", m) for s in range(5) for t in range(50) for m in ("amc", "smc", "react")}
    assert len(seeds) == 5 * 50 * 3


async def test_a_hidden_run_is_the_same_whatever_the_rewards(make_comparison, tmp_path):
    hidden = [best_of_n(), amc_hidden(Tuned(steps=(2,), beta=0.1))]

    async def play(pays):
        comparison = make_comparison(1, hidden, environment=lambda: BitWorld(pays))
        runs = [(await run_one(comparison, 0, comparison.tasks[0], m))[1] for m in hidden]
        return [
            ([[step.action for step in one.steps] for one in run.population.trajectories],
             [step.action for step in run.best.steps])
            for run in runs
        ]  # fmt: skip

    assert await play(lambda actions: float(all(actions))) == await play(lambda actions: float(not any(actions)))


@pytest.mark.thorough
async def test_the_critic_steers(make_comparison, tmp_path):
    tuned = Tuned(steps=(1, 2, 3), beta=0.05)
    records = await compare(make_comparison(20, [best_of_n(), amc(tuned), amc_hidden(tuned)]), tmp_path)
    mean = {
        name: np.mean([record.scores.mean for record in records if record.method == name])
        for name in ("best-of-n", "amc", "amc-hidden")
    }
    # Four fair coins: 1 / 16 all ones.
    assert mean["best-of-n"] < 0.15
    assert mean["amc"] > 0.3
    assert mean["amc-hidden"] > 0.3


class Distant:
    """Behind a server: it says what it predicts once it was asked."""

    connected = False
    values = ShareOfOnes.values

    async def connect(self):
        type(self).connected = True

    @property
    def predicts(self):
        if not self.connected:
            raise CriticError("not connected")
        return "return"


def test_a_critic_behind_a_server_is_connected_where_the_comparison_is_made(make_comparison, monkeypatch):
    monkeypatch.setitem(spec.KINDS, "distant", lambda target, options: Distant())
    comparison = make_comparison(critic="distant")
    assert comparison.settings["critic"] == "distant"
    assert Distant.connected


async def test_a_critic_of_the_future_is_not_asked_to_pick_among_finished_runs(make_comparison, tmp_path):
    asked = []

    class Future(ShareOfOnes):
        predicts = "future"

        async def values(self, trajectories):
            asked.extend(trajectories)
            return await super().values(trajectories)

    records = await compare(make_comparison(1, [best_of_n(), smc(Tuned(steps=(2,)))], critic=Future()), tmp_path)
    assert [record.scores.deployable for record in records] == [None, None]
    assert asked == [], "it has nothing to say of finished trajectories"
    with pytest.raises(ConfigurationError, match="amc-hidden hides rewards"):
        make_comparison(1, critic=Future())


async def test_an_estimate_plays_each_method_once_and_multiplies(make_comparison):
    methods = [react(), best_of_n(), amc(Tuned(steps=(2,))), lac(Tuned(k=2), critic="tests.bench.coins:LikesOnes")]
    comparison = make_comparison(10, methods, n_particles=3)
    estimates = await estimate_runs(comparison, [PlannedRuns(method.name, None, 10) for method in methods])
    calls = {each.method: each.policy_calls for each in estimates}
    assert calls == {"react": 10 * 4, "best-of-n": 3 * 10 * 4, "amc": 3 * 10 * 4, "lac": 2 * 10 * 4}
    assert [each.n_runs for each in estimates] == [10] * 4
    assert estimates[0].dollars is None  # the model has no price
    assert BitWorld.started == 4
    cost = Cost(1, 20, 3, 9, 4, 50, 9, 0, 0.5, world_model_calls=2, world_model_tokens=7, dollars=0.25)
    assert _times("amc", 2, 6, cost) == MethodEstimate("amc", 2, 6, 6 * 23, 6 * 6, 6 * 57, 1.5)


async def test_an_estimate_of_a_search_counts_every_setting_and_n(make_comparison):
    grid = Grid(temperatures=(0.3, 0.6), n_particles=(2, 5))
    search = TuningSearch(("react", "best-of-n"), grid, 5, joint=True, max_calls=999)
    comparison = make_comparison(5, [react(), best_of_n()], seeds=(0, 1))
    plain, parallel = await estimate_runs(comparison, search.planned(2))
    n_played = 2 * 5 * 2  # temperatures x tasks x seeds
    assert (plain.n_runs, parallel.n_runs) == (n_played, 2 * n_played)
    assert (plain.policy_calls, parallel.policy_calls) == (n_played * 4, n_played * (2 + 5) * 4)


def test_empty_comparisons_and_duplicate_names_are_refused(make_comparison):
    with pytest.raises(ConfigurationError, match="tasks"):
        make_comparison(0)
    with pytest.raises(ConfigurationError, match="methods"):
        make_comparison(1, [react(), react()])


def test_methods_by_name(six_methods):
    assert [one.name for one in chosen(six_methods, ["amc", "react"])] == ["react", "amc"]
    with pytest.raises(ConfigurationError, match="no method amk; there are: react"):
        chosen(six_methods, ["amk"])
    assert six_methods[2].resample == Never()


def test_judges_are_offered_where_their_kind_is_known(monkeypatch):
    known = {method.name for method in judged("openai:x", Tuned(steps=(2,)))}
    from amc_agents.critics import spec

    assert known == {name for kind, name in (("judge", "smc-zero-shot"), ("foa", "smc-foa")) if kind in spec.KINDS}
    monkeypatch.setitem(spec.KINDS, "judge", lambda target, options: ShareOfOnes())
    assert judged("openai:x", Tuned(steps=(2,)))[0].critic == "judge:openai:x"


def test_a_folder_takes_records_only_while_open(tmp_path):
    with pytest.raises(ConfigurationError, match="open"):
        ResultsFolder(tmp_path, {}, {}).add(RunResult("react", "task", 0, None, None))


def holding(folder):
    """A folder with a record."""
    ResultsFolder(folder, {"a": 1}, {})
    (folder / "records.jsonl").write_text("{}\n")


def test_a_demo_replaces_what_a_demo_left(tmp_path):
    out = tmp_path / "out"
    for _ in range(2):
        with demo_folder(out):
            assert not list(out.glob("records*.jsonl"))
            holding(out)
        assert (out / "records.jsonl").exists()


def test_a_demo_that_breaks_off_leaves_a_demos_folder(tmp_path):
    def broken_off():
        with demo_folder(tmp_path):
            holding(tmp_path)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    with demo_folder(tmp_path):
        assert not (tmp_path / "records.jsonl").exists()


@pytest.mark.parametrize("content", ["records.jsonl", "notes.txt", ".hidden"])
def test_a_demo_refuses_a_folder_that_is_not_a_demos(tmp_path, content):
    (tmp_path / content).write_text("mine")
    with (
        pytest.raises(ConfigurationError, match=r"holds files and is not a folder of `amc demo`"),
        demo_folder(tmp_path),
    ):
        raise AssertionError("refused before")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(content, "mine")]


def test_a_demo_refuses_a_file(tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(ConfigurationError, match="is a file"), demo_folder(tmp_path / "out"):
        raise AssertionError("refused before")


def test_results_added_to_a_demos_folder_are_kept(tmp_path):
    with demo_folder(tmp_path):
        holding(tmp_path)
    ResultsFolder(tmp_path, {"a": 1}, {}, resume=True)
    with pytest.raises(ConfigurationError, match="is not a folder of `amc demo`"), demo_folder(tmp_path):
        raise AssertionError("refused before")
    assert (tmp_path / "records.jsonl").read_text() == "{}\n"
