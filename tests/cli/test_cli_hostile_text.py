"""Texts of others in the command line's output: names of folders, posteriors, configurations, errors."""

from __future__ import annotations

import ast
import asyncio
import io
import json

import pytest
from langgraph.store.sqlite import SqliteStore
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from amc_agents.cli.console import PlainConsole
from amc_agents.psrl.posterior.store import StorePosterior
from amc_agents.psrl.posterior.updates import edit
from amc_agents.quoting import printable

CLEAR = "\x1b[2J"
HOSTILE = f"one{CLEAR}\rtwo\x07\x9b31m[/x][red]:fire:\u202ethree"

WRITTEN = HOSTILE.replace("\r", "")
"""Without a carriage return, as a posterior's text has none."""


def obeyed(text):
    """The characters that a terminal would obey."""
    return [character for character in text if character not in "\n\t" and character != printable(character)]


@pytest.mark.parametrize("character", [*map(chr, range(0xA0)), "\u202e", "\u2066", "\udc80"])
def test_control_characters_are_written_out(character):
    plain = character in "\n\t" or 0x20 <= ord(character) < 0x7F
    assert printable(f"a{character}b") == (f"a{character}b" if plain else f"a\\u{ord(character):04x}b")


@pytest.mark.parametrize("text", ["Zeile\n\tnächste", "日本語", "👩‍🚀", "a\u200cb", "\\u001b"])
def test_other_text_stays_as_it_is(text):
    assert printable(text) == text


@pytest.mark.parametrize("terminal", [False, True])
def test_whatever_a_console_draws_is_neutralised(terminal):
    table = Table(HOSTILE, title=HOSTILE, caption=HOSTILE)
    table.add_row(HOSTILE)
    table.add_row(Text(HOSTILE))
    table.columns[0].overflow = "fold"
    screen = io.StringIO()
    console = PlainConsole(file=screen, force_terminal=terminal, color_system=None, width=200)
    console.print(HOSTILE)
    console.print(table)
    with Progress(console=console, disable=terminal) as bar:
        bar.add_task(CLEAR)
    drawn = screen.getvalue()
    assert CLEAR not in drawn
    assert obeyed(drawn) == []
    assert drawn.count("[/x][red]:fire:") >= 4


@pytest.mark.thorough
def test_a_folder_whose_name_looks_like_markup_is_written_and_named(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    tiny = ["--tasks", "1", "--particles", "2", "--workers", "1", "--methods", "react", "--band", "2", "3"]
    code, out, err = command("bench", "--out", "r[red]:fire:[/x]", *tiny)
    assert (code, err) == (0, "")
    assert "r[red]:fire:[/x]/results.json" in out
    assert (tmp_path / "r[red]:fire:[/x]" / "results.json").is_file()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "arguments",
    [
        ("posterior", "show", f"missing{CLEAR}.db"),
        ("score", "--data", f"missing{CLEAR}", "--critic", "uniform", "--out", "x"),
        ("train", "goal", "--data", f"missing{CLEAR}[/x]", "--out", "x"),
        ("bench", "--critic", f"nothing{CLEAR}:[/x]", "--out", "x", "--tasks", "1"),
        ("doctor", "--critic", f"nothing{CLEAR}:[/x]"),
        ("doctor", "--config", f"missing{CLEAR}[/x].toml"),
        ("doctor", "--config", f"missing{CLEAR}[/x].toml", "--json"),
    ],
)
def test_errors_show_what_they_quote(command, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    code, out, err = command(*arguments)
    assert code != 0
    assert obeyed(out + err) == []
    assert "1b[2J" in out + err


@pytest.mark.thorough
@pytest.mark.parametrize(
    "arguments",
    [("show",), ("show", "--history"), ("show", "--json"), ("show", "--history", "--json"), ("diff", "1", "2")],
)
def test_a_posterior_is_shown_and_not_obeyed(command, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    with SqliteStore.from_conn_string("memory.db") as store:
        memory = StorePosterior(store, "worlds", prior="before")
        asyncio.run(edit(memory, WRITTEN, parent=asyncio.run(memory.head()).id, note=WRITTEN))
    first, *others = arguments
    code, out, err = command("posterior", first, "memory.db", "worlds", *others)
    assert code == 0
    assert obeyed(out + err) == []
    assert "one\\u001b[2J" in out + err
    if "--json" in arguments:
        told = json.loads(out)
        assert (told[-1] if "--history" in arguments else told)["text"] == WRITTEN


def test_the_command_line_prints_only_escaped_text(repository):
    for path in sorted((repository / "amc_agents" / "cli").glob("*.py")):
        if path.name in ("output.py", "console.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("print", "typer.echo", "typer.secho", "click.echo", "Console"), (
                    f"{path}: {called}"
                )
