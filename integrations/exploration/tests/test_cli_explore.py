"""`amc explore`, which the core finds by its entry point."""

from __future__ import annotations

import json
from functools import partial

import pytest


@pytest.fixture
def explore(command):
    """`amc explore` in this process: (exit code, stdout, stderr)."""
    return partial(command, "explore")


@pytest.mark.thorough
def test_agents_side_by_side(explore, tmp_path):
    out = tmp_path / "out"
    agents = ["--agent", "classic-psrl", "--agent", "explorers:stubborn"]
    sweep = ["--temperature", "0.5", "--temperature", "1.5", "--workers", "1", "--episodes", "4"]
    arguments = ["--world", "riverswim", *agents, *sweep, "--out", str(out)]
    code, text, err = explore(*arguments, "--trials", "2")
    assert code == 0, err
    assert "6 trials" in text
    for name in ("exploration.json", "exploration.md", "regret.png", "surrogates.png", "temperature.png"):
        assert (out / name).stat().st_size > 0, name
        assert name in text.replace("\n", "")
    kept = json.loads((out / "exploration.json").read_text())
    assert [explorer["temperature"] for explorer in kept["explorers"]] == [None, 0.5, 1.5]
    assert kept["settings"]["n_episodes"] == 4
    assert kept["command"].startswith("amc explore --world riverswim --agent classic-psrl")
    code, text, err = explore(*arguments, "--trials", "3", "--resume")
    assert code == 0, err
    assert len((out / "records.jsonl").read_text().splitlines()) == 9


@pytest.mark.thorough
def test_the_episodes_are_the_worlds_own(explore, tmp_path):
    lock = ["--world", "combination-lock", "--agent", "random", "--trials", "1", "--workers", "1"]
    code, out, err = explore(*lock, "--out", tmp_path, "--json")
    assert code == 0, err
    kept = json.loads((tmp_path / "exploration.json").read_text())
    assert kept["settings"]["n_episodes"] == 8
    assert json.loads(out) == {key: value for key, value in kept.items() if key != "version"}
    assert "exploration.md" in err.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--agent", "nobody"], "no agent 'nobody'"),
        (["--agent", "random", "--world", "pond"], "unknown world 'pond'"),
        (["--agent", "random", "--split", "all"], '"train"'),
        (["--agent", "random", "--temperature", "1"], "accepts a temperature"),
    ],
)
def test_an_error_is_one_line(explore, tmp_path, arguments, sentence):
    code, _, err = explore(*arguments, "--out", str(tmp_path / "out"))
    assert code == 2
    assert err.startswith("amc: ")
    assert sentence in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()
