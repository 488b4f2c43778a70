"""The commands with the user's own agent: new, bench, collect, tune."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from amc_agents import Task, amc
from amc_agents.bench.own import load_own_agent
from amc_agents.config import Config
from tests.bench.own_agents import write_agent, write_tasks
from tests.scripted_http import scripted_server


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write an agent and 4 test and 4 training tasks into the working directory, and return the agent's name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = write_agent(tmp_path)
    test = write_tasks(tmp_path, 3).read_text()
    train = write_tasks(tmp_path, 3, split="train").read_text().replace('"t', '"s').replace('"srain', '"train')
    (tmp_path / "tasks.jsonl").write_text(test + train)
    return name


SMALL = ("--tasks", "tasks.jsonl", "--workers", "1")


@pytest.mark.thorough
def test_bench_ends_with_the_pick_against_the_plain_agent(command, own):
    critic = ("--critic", f"{own}:Share", "--particles", "3", "--methods", "react,best-of-n,amc-hidden")
    code, out, err = command("bench", own, "--out", "results", *SMALL, *critic, "--steps", "2")
    assert code == 0, err
    assert "3 of 6 tasks: split test." in out
    assert "a call of pay ends the trajectory" in out
    lines = out.split("Written:")[1]
    assert "AMC, rewards hidden: " in lines
    assert "against plain agent: " in lines
    assert "model calls" in lines
    results = json.loads(Path("results/results.json").read_text())
    assert results["settings"]["agent"] == own
    assert [method["label"] for method in results["methods"]] == ["plain agent", "Best-of-N", "AMC, rewards hidden"]
    again = ("--steps", "2", "--resume", "--json")
    code, out, err = command("bench", "--agent", own, "--out", "results", *SMALL, *critic, *again)
    assert code == 0, err
    assert json.loads(out)["methods"] == results["methods"]
    assert "against plain agent: " in err


def test_failed_runs_are_in_the_table_and_in_the_exit_status(command, own, tmp_path):
    path = tmp_path / "tasks.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0].replace('"ones"', '"trouble": "score", "ones"'), *lines[1:]]))
    code, out, _ = command("bench", own, "--out", "r", *SMALL, "--methods", "react")
    assert code == 1
    assert "1 of 3" in out
    assert "no score for you" in out
    code, out, _ = command("collect", "--agent", own, "--out", "d", "--tasks", "tasks.jsonl", "--split", "test")
    assert code == 1
    assert "1 tasks failed and are not in the dataset; the same command plays them again" in out


@pytest.mark.thorough
def test_collect_writes_a_dataset_of_the_training_tasks(command, own):
    pytest.importorskip("pyarrow")
    from amc_agents.training.dataset import read_records

    arguments = ("collect", "--agent", own, "--tasks", "tasks.jsonl", "--out", "data", "--trajectories", "3")
    code, out, err = command(*arguments)
    assert code == 0, err
    assert "Planned: 3 tasks x 3 trajectories of up to 6 steps" in out
    assert "9 new trajectories in data" in out
    assert "amc train value --data data --base MODEL" in out
    records = read_records("data")
    assert {record.trajectory.task.id for record in records} == {"s0", "s1", "s2"}
    assert {record.trajectory.return_ for record in records} <= {0.0, 1.0}
    assert json.loads(records[0].settings)["temperature"] == 0.8  # the default of make_agent
    assert '"pay"' in records[0].trajectory.steps[-1].action  # called, and not run
    assert json.loads(command(*arguments, "--json")[1]) == {"out": "data", "new": 0, "lost": 0, "errors": []}


@pytest.mark.thorough
def test_tune_writes_a_configuration_for_amc(command, own, tmp_path):
    critic = f"{own}:Share"
    code, out, err = command(
        "tune", "--agent", own, "--out", "tuning", *SMALL, "--critic", critic, "--particles", "2",
        "--first", "2", "--temperatures", "0.5", "--methods", "amc-hidden",
    )  # fmt: skip
    assert code == 0, err
    assert "runs of up to 6 steps; stored ones are not repeated. --estimate prints their cost." in out
    chosen = json.loads((tmp_path / "tuning/tuning.json").read_text())
    assert chosen["settings"]["split"] == "train"
    assert chosen["settings"]["agent"] == own
    config = Config.load("tuning/amc.toml")
    assert config.critic == critic
    agent = load_own_agent(own)
    graph = agent.make_agent(0.5)
    task = Task("t", "Say.", {"ones": 1})
    given = agent.arguments_for(task, graph)
    settings = replace(given.pop("settings"), config="tuning/amc.toml")
    run = amc(graph, settings=settings, seed=0, **given).run(agent.input_of(task))
    assert run.config["horizon"] == 6
    assert run.config["beta"] == chosen["chosen"]["amc-hidden"]["beta"]
    assert f"amc bench {own} --tasks tasks.jsonl --critic {critic} --tuned tuning/tuning.json" in out
    assert "amc(make_agent(0.5), ..., settings=AmcSettings(config='tuning/amc.toml'))" in out
    code, out, err = command("bench", own, "--out", "r", *SMALL, "--critic", critic, "--tuned", "tuning/tuning.json",
                             "--particles", "2", "--methods", "amc-hidden")  # fmt: skip
    assert code == 0, err


@pytest.mark.thorough
def test_tune_jointly_and_compare_with_one_setting_after_the_other(command, own, tmp_path):
    tune = ["tune", "--agent", own, "--out", "tuning", "--tasks", "tasks.jsonl", "--workers", "1"]
    tune += ["--critic", f"{own}:Share", "--temperatures", "0.5", "--methods", "amc-hidden", "--joint"]
    code, out, err = command(*tune, "--particles", "2", "--regret", "2")
    assert code == 0, err
    content = json.loads((tmp_path / "tuning/tuning.json").read_text())
    assert all(cell["scores"]["oracle"]["tasks"] == 1 for cell in content["cells"])  # two of three are held out
    if "regret" in content:  # the two searches can agree
        assert content["regret"]["amc-hidden"]["tasks"] == 2
        assert "on 2 other tasks: pick" in out
    else:
        assert "amc-hidden: a search of one setting after the other chose the same setting" in out


def test_the_regret_is_shown_of_every_method():
    from amc_agents.bench.methods import Tuned
    from amc_agents.bench.statistics import Paired
    from amc_agents.bench.tuned import Cell, Tuning
    from amc_agents.cli.tune import _regret_lines

    best = {name: Cell(name, Tuned(), {}) for name in ("smc", "amc")}
    lost = Paired(0.02, low=-0.01, high=0.05, standard_error=0.015, tasks=9, seeds=1)
    assert _regret_lines(Tuning((), best, {"amc": lost})) == [
        "smc: a search of one setting after the other chose the same setting, so it loses nothing here",
        "amc: joint search minus one setting after the other, on 9 other tasks: pick +0.020 [-0.010, +0.050]",
    ]


@pytest.mark.thorough
def test_the_cost_is_estimated_before_anything_is_stored(command, own, tmp_path):
    tune = (
        "tune", "--agent", own, "--out", "tuning", *SMALL, "--particles", "2", "--temperatures", "0.5,1",
        "--methods", "react,best-of-n", "--estimate",
    )  # fmt: skip
    code, out, err = command(*tune)
    assert code == 0, err
    assert "one run of best-of-n" in out
    assert "About 12 runs, " in out  # two methods, two temperatures, three tasks
    amounts = {each["method"]: each for each in json.loads(command(*tune, "--json")[1])}
    assert amounts["react"]["n_runs"] == amounts["best-of-n"]["n_runs"] == 6
    collect = ("collect", "--agent", own, "--tasks", "tasks.jsonl", "--out", "data", "--trajectories", "4")
    code, out, err = command(*collect, "--estimate")
    assert code == 0, err
    assert "About 12 trajectories, " in out
    assert not (tmp_path / "tuning").exists()
    assert not (tmp_path / "data").exists()


def test_the_chosen_n_is_in_the_written_configuration(own, tmp_path):
    from amc_agents.bench.methods import Tuned
    from amc_agents.bench.own.plan import OwnPlan
    from amc_agents.bench.tuned import Cell, Tuning
    from amc_agents.cli.tune import _write_files

    cell = Cell("amc", Tuned(0.5, (3,), 0.1, n_particles=3), {})
    plan = OwnPlan(own, tmp_path / "tasks.jsonl", n_particles=9)
    _write_files(Tuning([cell], {"amc": cell}), plan, tmp_path)
    assert Config.load(tmp_path / "amc.toml").amc.n_particles == 3


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["tune", "--out", "t", "--particles", "2,3"], "tries several N: add --joint, or give a single N"),
        (["tune", "--out", "t", "--regret", "4"], "--regret applies to --joint only: add it"),
        (["tune", "--out", "t", "--joint", "--full"], "--joint and --full are two ways to search"),
        (["tune", "--out", "t", "--joint", "--particles", "2,3"], "several N are compared at equal cost only"),
        (
            ["tune", "--agent", "OWN", "--tasks", "tasks.jsonl", "--out", "t", "--joint", "--regret", "3"],
            "--regret 3 needs more than 3 training tasks, and the file has 3",
        ),
        (["bench", "OWN"], "needs your tasks: --tasks FILE"),
        (["bench", "--tasks", "tasks.jsonl"], "a file needs your own agent (--agent)"),
        (["bench", "OWN", "--agent", "OWN", "--tasks", "tasks.jsonl"], "two agents are named"),
        (
            ["bench", "OWN", "--tasks", "tasks.jsonl", "--world", "crafting-hidden"],
            "--world cannot be combined with --agent",
        ),
        (["bench", "OWN", "--tasks", "tasks.jsonl", "--methods", "lac"], "no method lac; there are: react"),
        (["bench", "OWN", "--tasks", "tasks.jsonl", "--methods", "reflact"], "reflact cannot run: the prompts of"),
        (["bench", "OWN", "--tasks", "none.jsonl"], "--tasks none.jsonl cannot be read"),
        (["bench", "OWN", "--tasks", "tasks.jsonl", "--split", "dev"], '"train", "test" or "all"'),
        (["bench", "nowhere", "--tasks", "tasks.jsonl"], "'nowhere' cannot be imported"),
        (
            ["bench", "OWN", "--tasks", "tasks.jsonl", "--critic", "embedded:crafting", "--methods", "amc"],
            "cannot read",
        ),
        (["collect", "--agent", "OWN"], "needs your tasks"),
        (["tune", "--agent", "OWN", "--tasks", "tasks.jsonl", "--band", "2", "4"], "--band cannot be combined"),
    ],
)
def test_wrong_arguments_are_one_line(command, own, arguments, part):
    given = [own if argument == "OWN" else argument for argument in arguments]
    code, _, err = command(*given, "--out", "results", *(() if given[0] == "collect" else ("--workers", "1")))
    assert code == 2
    assert part in err
    assert len(err.splitlines()) == 1
    assert len(err) <= 500


@pytest.mark.thorough
def test_new_writes_an_agent_that_runs_at_once(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = command("new", "my-trips", "--tasks", "4")
    assert code == 0, err
    assert "cd my-trips && amc bench my_trips --tasks tasks.jsonl --out results" in out
    folder = tmp_path / "my-trips"
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    code, out, err = command("bench", "my_trips", "--out", "r", *SMALL, "--particles", "2", "--methods", "react,smc")
    assert code == 0, err
    assert "2 of 4 tasks: split test." in out
    code, _, err = command("new", ".")
    assert code == 2
    assert "is not empty" in err or "gives no module name" in err


def test_the_test_that_new_writes_passes(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = json.loads(command("new", "trips-2", "--tasks", "4", "--json")[1])
    assert told["module"] == "trips_2"
    assert all(Path(file).exists() for file in told["files"])
    monkeypatch.syspath_prepend(str(tmp_path / "trips-2"))
    path = tmp_path / "trips-2/test_trips_2.py"
    module: dict[str, Any] = {"__file__": str(path), "__name__": "test_trips_2"}
    exec(compile(path.read_text(), str(path), "exec"), module)
    tests = [test for name, test in module.items() if name.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        test()


PRICES = '[prices."small"]\ninput = 1000.0\noutput = 2000.0\n'


def test_a_real_chat_model_is_one_changed_line(command, tmp_path, monkeypatch):
    pytest.importorskip("langchain_openai")
    command("new", tmp_path / "flights", "--tasks", "4")
    monkeypatch.chdir(tmp_path / "flights")
    monkeypatch.syspath_prepend(str(tmp_path / "flights"))
    module = Path("flights.py")
    lines = module.read_text().splitlines()
    (line,) = [number for number, line in enumerate(lines) if line.startswith("MODEL = None")]
    lines[line] = 'MODEL = "openai:small"'
    module.write_text("\n".join(lines))
    Path("amc.toml").write_text(PRICES)

    def answer(asked):
        call = {"name": "reserve", "arguments": '{"part": "flight", "quality": "cheap"}'}
        first = len(asked["messages"]) == 1
        message: dict[str, Any] = {"role": "assistant", "content": None if first else "That is all."}
        if first:
            message["tool_calls"] = [{"id": "c", "type": "function", "function": call}]
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        return 200, {"model": "small", "choices": [{"index": 0, "message": message}], "usage": usage}

    with scripted_server({"POST /v1/chat/completions": answer}) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        code, _, err = command("bench", "flights", "--out", "r", *SMALL, "--methods", "react", "--config", "amc.toml")
    assert code == 0, err
    cost = json.loads(Path("r/results.json").read_text())["methods"][0]["cost"]
    assert (cost["policy_calls"], cost["policy_output_tokens"]) == (2, 20)
    assert cost["dollars"] == pytest.approx((200 * 1000 + 20 * 2000) / 1e6)
    assert {asked["temperature"] for _, asked, _ in server.asked} == {1.0}


@pytest.mark.parametrize("name", ["1-agent", "class", "-"])
def test_new_refuses_a_name_that_no_module_can_have(command, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    code, _, err = command("new", "--", name)
    assert code == 2
    assert "gives no module name" in err
