from __future__ import annotations

import asyncio
import io
import json
import sqlite3
import sys
from functools import partial

import pytest
from langgraph.store.sqlite import SqliteStore

from amc_agents.errors import UpdateError
from amc_agents.psrl.posterior.memory import Evidence
from amc_agents.psrl.posterior.store import StorePosterior
from amc_agents.psrl.posterior.updates import update_posterior

PRIOR = "Lever A: 0 of 0.\nLever B: 0 of 0."
FILE = "memory.db"


async def won(text, evidence):
    return text.replace("A: 0 of 0", "A: 1 of 1")


async def refuse(text, evidence):
    raise TimeoutError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a store: a prior, one update, and one that failed."""
    monkeypatch.chdir(tmp_path)
    with SqliteStore.from_conn_string(FILE) as store:
        memory = StorePosterior(store, "worlds.lever", prior=PRIOR)
        asyncio.run(update_posterior(memory, won, Evidence("night 1", "A won")))
        with pytest.raises(UpdateError):
            asyncio.run(update_posterior(memory, refuse, Evidence("night 2", "B lost")))
    return tmp_path


@pytest.fixture
def posterior(folder, command):
    """`amc posterior` in this process: (exit code, stdout, stderr)."""
    return partial(command, "posterior")


def editor(folder, monkeypatch, code):
    """An editor that runs python code on the file `path`."""
    script = folder / "editor.py"
    script.write_text(f"import pathlib, sys\npath = pathlib.Path(sys.argv[1])\n{code}\n")
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", f"{sys.executable} {script}")


def head():
    with SqliteStore.from_conn_string(FILE) as store:
        return asyncio.run(StorePosterior(store, "worlds.lever").head())


def test_show_prints_the_text_alone_and_the_rest_beside_it(posterior):
    code, out, err = posterior("show", FILE, "worlds.lever")
    assert (code, out) == (0, "Lever A: 1 of 1.\nLever B: 0 of 0.\n")
    assert "version 2 (" in err
    assert "evidence of episode night 1" in err
    assert "not applied yet: episode night 2, B lost" in err
    assert posterior("show", FILE, "worlds.lever", "--version", "1")[1] == PRIOR + "\n"
    assert posterior("show", FILE) == (0, "worlds.lever\n", "")


def test_show_for_machines(posterior):
    printed = json.loads(posterior("show", FILE, "worlds.lever", "--json")[1])
    assert (printed["number"], printed["evidence"]["episode"], printed["pending"][0]["observation"]) == (
        2,
        "night 1",
        "B lost",
    )
    printed = json.loads(posterior("show", FILE, "worlds.lever", "--history", "--json")[1])
    assert [(version["number"], version["cause"], version["in_use"]) for version in printed] == [
        (1, "prior", True),
        (2, "evidence", True),
    ]
    assert json.loads(posterior("show", FILE, "--json")[1]) == ["worlds.lever"]


def test_diff_is_of_the_last_change_or_of_two_versions(posterior):
    code, out, _ = posterior("diff", FILE, "worlds.lever")
    assert code == 0
    assert out.splitlines()[-3:-1] == ["-Lever A: 0 of 0.", "+Lever A: 1 of 1."]
    assert "+Lever A: 0 of 0." in posterior("diff", FILE, "worlds.lever", "2", "1")[1]
    assert "have the same text" in posterior("diff", FILE, "worlds.lever", "2", "2")[1]


def test_edit_by_an_editor_a_file_or_the_standard_input(posterior, folder, monkeypatch):
    editor(folder, monkeypatch, "path.write_text(path.read_text() + 'Lever C: unknown.\\n')")
    code, out, err = posterior("edit", FILE, "worlds.lever", "--note", "a lever was built in")
    assert code == 0, err
    assert out.endswith("+Lever C: unknown.\n")
    assert err.strip().endswith("a lever was built in")
    assert (head().number, head().cause) == (3, "edit")
    assert head().text == "Lever A: 1 of 1.\nLever B: 0 of 0.\nLever C: unknown."
    (folder / "new.txt").write_text("All is known.\n")
    assert posterior("edit", FILE, "worlds.lever", "--file", "new.txt")[0] == 0
    assert head().text == "All is known."
    monkeypatch.setattr(sys, "stdin", io.StringIO("All is known.\n"))
    assert posterior("edit", FILE, "worlds.lever", "--file", "-")[1] == "nothing changed since version 4\n"


def test_an_editor_that_is_left_as_it_was_changes_nothing(posterior, folder, monkeypatch):
    editor(folder, monkeypatch, "")
    assert posterior("edit", FILE, "worlds.lever")[1] == "nothing changed since version 2\n"
    assert head().number == 2


@pytest.mark.thorough
def test_two_editors_at_once_lose_neither_text(posterior, folder, monkeypatch, repository):
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    code = f"""
import asyncio
sys.path.insert(0, {str(repository)!r})
from langgraph.store.sqlite import SqliteStore
from amc_agents.psrl.posterior.updates import edit
from amc_agents.psrl.posterior.store import StorePosterior
with SqliteStore.from_conn_string({FILE!r}) as store:
    asyncio.run(edit(StorePosterior(store, "worlds.lever"), "first"))
path.write_text("second")
"""
    editor(folder, monkeypatch, code)
    code, _, err = posterior("edit", FILE, "worlds.lever")
    assert code == 2
    assert "Yours is kept as version 4" in err
    kept = err.split("your text is saved in ")[1].splitlines()[0]
    with open(kept, encoding="utf-8") as file:
        assert file.read() == "second"
    assert head().text == "first"
    assert posterior("show", FILE, "worlds.lever", "--version", "4")[1] == "second\n"
    assert "not in use" in posterior("show", FILE, "worlds.lever", "--history")[1].splitlines()[3]


def test_changes_for_machines(posterior, folder):
    last = json.loads(posterior("diff", FILE, "worlds.lever", "--json")[1])
    assert (last["before"]["number"], last["after"]["number"]) == (1, 2)
    assert "+Lever A: 1 of 1." in last["diff"]
    restored = json.loads(posterior("rollback", FILE, "worlds.lever", "1", "--json")[1])
    assert (restored["before"]["number"], restored["after"]["number"]) == (2, 3)
    (folder / "new.txt").write_text("Lever A: 2 of 2.")
    edited = json.loads(posterior("edit", FILE, "worlds.lever", "--file", "new.txt", "--json")[1])
    assert edited["after"]["text"] == "Lever A: 2 of 2."
    same = json.loads(posterior("edit", FILE, "worlds.lever", "--file", "new.txt", "--json")[1])
    assert same["before"] == same["after"]
    assert same["diff"] == ""


def test_rollback_adds_a_version(posterior):
    code, out, err = posterior("rollback", FILE, "worlds.lever", "1", "--note", "broken sensor")
    assert code == 0
    assert "+Lever A: 0 of 0." in out
    assert "version 3 (" in err
    assert head().text == PRIOR
    lines = posterior("show", FILE, "worlds.lever", "--history")[1].splitlines()
    assert len(lines) == 3
    assert lines[2].endswith("broken sensor")
    assert "already has this text" in posterior("rollback", FILE, "worlds.lever", "3")[1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "missing.db", "a"), "there is no file missing.db"),
        (("show", FILE, "worlds.door"), "no posterior under 'worlds.door' and no prior to begin with. Posteriors in"),
        (("show", FILE, "worlds.lever", "--version", "7"), "no version matches '7'"),
        (("diff", FILE, "worlds.lever", "x"), "no version matches 'x'"),
        (("rollback", FILE, "worlds.lever", "9"), "no version matches '9'"),
        (("edit", FILE, "worlds.lever", "--file", "missing.txt"), "cannot be read from missing.txt"),
        (("edit", FILE, "worlds.lever", "--file", "empty.txt"), "the new text is empty: nothing was changed"),
        (("show", "text.db", "a"), "text.db cannot be used as a SQLite file"),
        (("show", "other.db", "a"), "other.db is not a LangGraph store: expected a table named store, got notes"),
        (("show", FILE, "a..b"), "such as agents.lock"),
    ],
)  # fmt: skip
def test_errors_are_one_line_and_change_nothing(posterior, folder, arguments, message):
    (folder / "text.db").write_text("This is not a database, but it is long enough to be mistaken for one. " * 20)
    (folder / "empty.txt").write_text("\n")
    other = sqlite3.connect("other.db")
    other.execute("CREATE TABLE notes (text)")
    other.close()
    code, out, err = posterior(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("amc: ")
    assert message in err
    assert len(err.splitlines()) == 1
    assert head().number == 2


def test_a_missing_driver_names_the_extra(posterior, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    code, _, err = posterior("show", "postgresql://127.0.0.1/x", "a")
    assert code == 2
    assert "pip install 'amc-agents[postgres]'" in err
