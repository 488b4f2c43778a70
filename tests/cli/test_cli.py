from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.text import Text

from amc_agents.cli.commands import app
from amc_agents.errors import MissingExtra

TINY = ["--tasks", "2", "--particles", "2", "--critic", "uniform", "--band", "2", "4"]


def amc(*arguments, cwd):
    """The command line in a process of its own."""
    root = str(Path(__file__).resolve().parents[1])
    environment = {**os.environ, "PYTHONPATH": root, "COLUMNS": "100", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    code = "from amc_agents.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120
    )


def test_help_is_fast_and_lists_the_commands(tmp_path):
    root = str(Path(__file__).resolve().parents[1])
    code = (
        f"import sys; sys.path.insert(0, {root!r}); sys.argv = ['amc', '--help']\n"
        "from amc_agents.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {name.split('.')[0] for name in sys.modules}\n"
        "print('HEAVY', sorted(heavy & {'torch', 'langchain', 'langchain_core', 'langgraph', 'numpy', 'matplotlib'}))"
    )
    told = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert all(word in told.stdout for word in ("demo", "bench", "collect", "train", "--version"))
    assert "HEAVY []" in told.stdout, told.stdout + told.stderr


def test_no_help_is_eaten_as_markup():
    for name, each in commands(typer.main.get_command(app)):
        for text in (each.help, each.short_help, each.epilog, *(getattr(one, "help", None) for one in each.params)):
            assert Text.from_markup(text or "").plain == (text or "").replace("\\[", "["), name


@pytest.mark.parametrize("name", [["bench"], ["train", "value"]])
def test_the_help_of_a_command_has_its_options_and_an_example(command, name):
    code, out, _ = command(*name, "--help")
    assert code == 0
    assert "--out" in out
    assert f"Example: amc {' '.join(name)}" in " ".join(out.split())


def commands(command, name=()):
    """The name and the click command of each command that does something."""
    if not (inner := getattr(command, "commands", {})):
        yield " ".join(name), command
    for last, each in inner.items():
        yield from commands(each, (*name, last))


def test_version(command):
    code, out, _ = command("--version")
    assert (code, out.startswith("amc-agents")) == (0, True)


@pytest.mark.thorough
def test_the_demo_in_two_processes(tmp_path):
    told = amc("demo", *TINY, "--workers", "2", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    out = tmp_path / "amc-demo"
    results = json.loads((out / "results.json").read_text())
    assert [method["name"] for method in results["methods"]] == ["react", "react-greedy", "best-of-n", "smc", "amc"]
    assert results["methods"][0]["scores"]["oracle"]["tasks"] == 2
    assert results["command"].startswith("amc demo --tasks 2")
    assert "left out: amc-hidden" in told.stdout
    for name in ("results.json", "results.md", "scores.png"):
        assert (out / name).stat().st_size > 500
        assert f"amc-demo/{name}" in told.stdout
    assert len(list(out.glob("records-*-of-2.jsonl"))) == 2
    again = amc("demo", *TINY, "--workers", "1", "--methods", "react", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert len(json.loads((out / "results.json").read_text())["methods"]) == 1


def test_a_demo_leaves_a_benchs_results_alone(command, tmp_path):
    (tmp_path / "records.jsonl").write_text("kept")
    code, _, err = command("demo", "--out", tmp_path, *TINY, "--methods", "react", "--workers", "1")
    assert code == 2
    assert "is not a folder of `amc demo`" in err
    assert (tmp_path / "records.jsonl").read_text() == "kept"


@pytest.mark.thorough
def test_bench_resumes(command, tmp_path):
    arguments = ["bench", "--out", str(tmp_path), *TINY, "--methods", "react,best-of-n", "--workers", "1"]
    assert command(*arguments)[0] == 0
    lines = (tmp_path / "records.jsonl").read_text()
    code, _, err = command(*arguments)
    assert code == 2
    assert "--resume" in err
    assert command(*arguments, "--resume", "--seeds", "2")[0] == 0
    assert json.loads((tmp_path / "results.json").read_text())["seconds"] is None, (
        "another call played some of the runs"
    )
    longer = (tmp_path / "records.jsonl").read_text()
    assert longer.startswith(lines)
    assert len(longer.splitlines()) == 2 * len(lines.splitlines()) == 8
    code, _, err = command(*arguments, "--resume", "--particles", "3")
    assert code == 2
    assert "n_particles was 2, is 3" in err


@pytest.mark.thorough
def test_beta_steps_and_success_reward_apply_to_all_methods_that_use_them(command, tmp_path):
    arguments = ["bench", "--out", str(tmp_path), *TINY, "--methods", "best-of-n,smc,amc,react", "--workers", "1"]
    assert command(*arguments, "--steps", "2,1", "--success-reward", "1", "--beta", "0.5")[0] == 0
    methods = json.loads((tmp_path / "settings.json").read_text())["methods"]
    assert methods.pop("react")["beta"] == 1.0
    assert {of["beta"] for of in methods.values()} == {0.5}
    assert {name: of["resample"] for name, of in methods.items()} == {
        "best-of-n": "Never()", "smc": "AtSteps(1, 2)", "amc": "AtSteps(1, 2)",
    }  # fmt: skip
    assert [of.get("success_reward") for of in methods.values()] == [None, None, 1.0]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["bench", "--beta", "0"], "above 0"),
        (["bench", "--success-reward", "0"], "above 0"),
        (["bench", "--steps", "4;8"], "as in 4,8; got '4;8'"),
        (["bench", "--steps", "0"], "from 1"),
        (["bench", "--steps", "x", "--methods", "react"], "as in 4,8"),
        (["demo", "--methods", "amk"], "no method amk; there are: react"),
        (["demo", "--model", "nowhere"], "nowhere"),
        (["demo", "--critic", "embeded:crafting"], "did you mean 'embedded'?"),
        (["bench", "--split", "all"], '"train"'),
        (["collect", "--model", "nobody:model"], "nobody"),
    ],
)
def test_an_error_is_one_line(command, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    code, _, err = command(*arguments, "--out", str(tmp_path / "out"))
    assert code == 2
    assert err.startswith("amc: ")
    assert sentence in err
    assert err.count("\n") == 1


def test_a_missing_extra_is_one_line(command, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "amc_agents.training.value.train_value", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    code, _, err = command("train", "value", "--data", str(tmp_path), "--out", str(tmp_path / "value"))
    assert code == 2
    assert err == f"amc: {MissingExtra('torch', 'train')}\n"


@pytest.mark.thorough
def test_score_a_collected_dataset(command, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    data, out = str(tmp_path / "data"), tmp_path / "values.parquet"
    collected = ["collect", "--out", data, "--tasks", "3", "--trajectories", "2", "--band", "2", "3", "--horizon", "4"]
    assert command(*collected)[0] == 0
    arguments = ["score", "--data", data, "--critic", "embedded:crafting", "--out", str(out)]
    code, text, err = command(*arguments)
    assert code == 0, err
    assert "6/6" in text
    assert "states/s" in text
    assert "Pearson r" in text
    assert str(out) in text.replace("\n", "")
    rows = parquet.read_table(out).to_pylist()
    assert sorted((row["task_id"], row["group"]) for row in rows) == [
        (task, group) for task in sorted({row["task_id"] for row in rows}) for group in (0, 1)
    ]
    assert all(len(row["values"]) == len(row["targets"]) for row in rows)
    assert "scored before" in command(*arguments)[1]
    code, _, err = command(*arguments[:4], "uniform", *arguments[5:])
    assert (code, err.count("\n")) == (2, 1)
    assert "critic was 'embedded:crafting', is 'uniform'" in err


def test_collect_in_another_world(command, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    arguments = ["collect", "--out", str(tmp_path), "--tasks", "2", "--trajectories", "2", "--horizon", "3"]
    code, _, err = command(*arguments, "--world", "crafting-hidden", "--first", "5")
    assert code == 0, err
    rows = parquet.read_table(tmp_path).to_pylist()
    assert {row["task_id"] for row in rows} == {"workshop/hidden/train/5", "workshop/hidden/train/6"}
    code, _, err = command(*arguments, "--world", "crafting-hidden", "--band", "2", "3")
    assert (code, "a difficulty band applies to the crafting world only" in err) == (2, True)


@pytest.mark.thorough
def test_collect_and_train_a_value_model(command, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("pyarrow")
    data, out = str(tmp_path / "data"), str(tmp_path / "value")
    collected = ["collect", "--out", data, "--tasks", "6", "--trajectories", "2", "--band", "2", "3", "--horizon", "4"]
    code, text, err = command(*collected)
    assert code == 0, err
    assert "12 new trajectories" in text
    assert "0 new trajectories" in command(*collected)[1]
    code, text, err = command("train", "value", "--data", data, "--out", out, "--epochs", "1")
    assert code == 0, err
    assert json.loads((tmp_path / "value" / "amc_value.json").read_text())["target"] == "return"


@pytest.mark.thorough
def test_a_bench_with_an_adaptive_number_of_particles(command, tmp_path):
    arguments = ["bench", *TINY[:2], *TINY[4:], "--methods", "best-of-n,amc", "--workers", "1", "--success-reward", "1"]
    assert command(*arguments, "--particles", "2..8", "--out", tmp_path)[0] == 0
    assert json.loads((tmp_path / "settings.json").read_text())["settings"]["n_particles"] == "2..8"
    assert "N = 2..8" in (tmp_path / "results.md").read_text()


@pytest.mark.parametrize(
    ("particles", "sentence"),
    [("0", "--particles must be at least 1, got 0"), ("few", 'expected a number of particles, or "start..most"')],
)
def test_a_number_of_particles_that_cannot_be_read(command, tmp_path, particles, sentence):
    code, _, err = command("bench", "--out", tmp_path, "--particles", particles)
    assert code == 2
    assert sentence in " ".join(err.split())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["bench", "--out", "my results"], "Go on with: amc bench --out 'my results' --resume"),
        (["train", "value", "--out", "v"], "Go on with: amc train value --out v --resume"),
        (["collect", "--out", "d"], "Go on with: amc collect --out d"),
        (["demo"], None),
        ([], None),
    ],
)
def test_an_interrupted_command_says_how_to_go_on(command, monkeypatch, arguments, told):
    def interrupted():
        raise SystemExit(130)

    monkeypatch.setattr("amc_agents.cli.commands.app", interrupted)
    code, _, err = command(*arguments)
    assert code == 130
    assert err == ("amc: interrupted\n" if told is None else f"amc: interrupted; finished results are kept. {told}\n")


def test_the_list_of_commands_fits_a_screen(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = command("--help")
    assert code == 0
    assert len(out.splitlines()) <= 23, "a terminal of 24 lines also shows the prompt"
    assert max(map(len, out.splitlines())) <= 80
    commands = out.split("Commands")[1]
    assert "…" not in commands
    assert "..." not in commands
    assert "Exit status: 0; 1 if a check or some runs failed; 2 after an error; 130" in " ".join(out.split())
    assert "--install-completion" in out
    assert command() == (2, out, ""), "without a command, too"


def test_every_command_and_group_has_an_example_and_every_command_takes_json():
    from typer.main import get_command

    from amc_agents.cli.commands import app

    def walk(command, name):
        inner = getattr(command, "commands", {})
        for each in inner:
            walk(inner[each], f"{name} {each}")
        assert (name == "amc") or command.epilog.startswith(f"Example: {name} "), name
        assert inner or any("--json" in option.opts for option in command.params), name

    walk(get_command(app), "amc")
