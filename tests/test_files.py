"""Files that are replaced atomically, lines that survive interruptions, and locks between processes."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from io import FileIO

import pytest

from amc_agents.errors import AmcError, CheckpointError, ConfigurationError, StorageError
from amc_agents.files import JsonLinesFile, read_json_object, replace_file, sole_user, sole_writer, taking_turns


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("content", ["é\n", "é\n".encode(), lambda path: path.write_text("é\n", encoding="utf-8")])
def test_text_bytes_and_what_a_function_writes_replace_a_file(tmp_path, content):
    file = tmp_path / "file"
    file.write_text("old")
    replace_file(file, content)
    assert file.read_text(encoding="utf-8") == "é\n"
    assert list(tmp_path.iterdir()) == [file]


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path):
    file = tmp_path / "file"
    file.write_text("old")
    with pytest.raises(StorageError, match=r"cannot write .*file: the disk is full. Free some space") as caught:
        replace_file(file, full_disk)
    assert isinstance(caught.value, OSError)
    assert isinstance(caught.value, AmcError)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_path_through_a_file_is_named_with_a_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="a component of the path is a file"):
        replace_file(tmp_path / "file" / "inner", "text")
    with pytest.raises(StorageError, match="the folder does not exist"):
        replace_file(tmp_path / "missing" / "inner", "text")


def test_lines_are_kept_and_a_torn_one_is_removed(tmp_path):
    path = tmp_path / "lines.jsonl"
    for number in range(2):
        with JsonLinesFile(path) as lines:
            lines.append({"n": number})
        with path.open("a") as torn:
            torn.write('{"n": 7, "te')
    with JsonLinesFile(path) as lines:
        lines.append({"n": 2})
    assert [json.loads(line)["n"] for line in path.read_text().splitlines()] == [0, 1, 2]
    with pytest.raises(ConfigurationError, match="is not open"):
        lines.append({"n": 3})


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is Linux's")
def test_a_line_that_does_not_fit_is_an_error_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("amc_agents.files.FileIO", lambda path, mode: FileIO("/dev/full", mode))
    with (
        JsonLinesFile(tmp_path / "lines.jsonl") as lines,
        pytest.raises(StorageError, match=r"lines.jsonl: the disk is full"),
    ):
        lines.append({"n": 1})


@pytest.mark.parametrize(
    ("text", "message"), [("{", "JSONDecodeError"), ("[" * 100_000, "RecursionError"), ("[1]", "holds a JSON list"),
                          ("\udcff", "UnicodeDecodeError")]
)  # fmt: skip
def test_what_is_not_an_object_is_named_in_one_line(tmp_path, text, message):
    file = tmp_path / "settings.json"
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(CheckpointError, match=message) as caught:
        read_json_object(file, remedy="use another folder")
    assert str(caught.value).endswith("use another folder")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 400


HOLD = """
import sys
from pathlib import Path
from amc_agents.files import sole_user
with sole_user(Path(sys.argv[1]), doing="a test"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_is_refused_while_another_process_lives_and_free_once_it_is_killed(tmp_path):
    lock = tmp_path / ".lock"
    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(ConfigurationError, match=r"in use by another process \(amc bench\): wait"):
            with sole_user(lock, doing="amc bench"):
                pass
        other.kill()
        other.wait()
        with sole_user(lock, doing="amc bench"):
            pass


def test_two_writers_of_one_result_are_refused_and_nothing_stays_behind(tmp_path):
    with sole_writer(tmp_path / "model"):
        with pytest.raises(ConfigurationError, match="is writing model"), sole_writer(tmp_path / "model"):
            pass
        with sole_writer(tmp_path / "other"):
            pass
    assert list(tmp_path.iterdir()) == []


COUNT = """
import sys
from pathlib import Path
from amc_agents.files import taking_turns
folder = Path(sys.argv[1])
for _ in range(200):
    with taking_turns(folder / ".lock"):
        count = int((folder / "count").read_text())
        (folder / "count").write_text(str(count + 1))
"""


def test_processes_that_take_turns_lose_no_update(tmp_path):
    (tmp_path / "count").write_text("0")
    others = [subprocess.Popen([sys.executable, "-c", COUNT, str(tmp_path)]) for _ in range(2)]
    assert [other.wait() for other in others] == [0, 0]
    with taking_turns(tmp_path / ".lock"):
        assert (tmp_path / "count").read_text() == "400"
