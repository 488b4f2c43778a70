"""Copies share nothing with the repository, and their changes come back without overwriting the user's."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from amc_agents.envs.real.changes import Conflict
from amc_agents.errors import ConfigurationError
from amc_agents.operations.code.copies import Repository, changes_in, make_base, make_copy, matching
from amc_agents.operations.code.processes import end_processes, marked
from amc_agents.operations.code.running import HALF_OUTPUT, Place, run_command, shell

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="process groups")


def git(folder, *arguments):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def repository_in(tmp_path):
    top = tmp_path / "project"
    (top / "src").mkdir(parents=True)
    for name, text in {".gitignore": "*.log\n", "src/a.py": "x = 1\ny = 2\nz = 3\n", "b.txt": "old\r\n"}.items():
        (top / name).write_bytes(text.encode())
    os.symlink("b.txt", top / "link")
    git(top, "init", "-q")
    git(top, "add", "-A")
    git(top, "commit", "-qm", "first")
    (top / "b.txt").write_text("staged\n")
    git(top, "add", "b.txt")
    (top / "new.txt").write_text("untracked\n")
    (top / "big.log").write_text("ignored\n")
    return top


@pytest.fixture
def repository(tmp_path):
    return repository_in(tmp_path)


def copied(top, tmp_path, *ignored):
    found = Repository.around(top)
    base, copy = tmp_path / "state" / "base", tmp_path / "state" / "copy"
    base.parent.mkdir()
    make_base(found, base, ignored)
    make_copy(found, base, copy)
    return found, base, copy


def state_of(top):
    return {path.relative_to(top): path.read_bytes() for path in top.rglob("*") if path.is_file()}


def test_a_copy_has_the_dirty_tree_and_a_git_of_its_own(repository, tmp_path):
    before = state_of(repository)
    _, _, copy = copied(repository, tmp_path)
    assert git(copy, "status", "--porcelain") == git(repository, "status", "--porcelain") == "M  b.txt\n?? new.txt\n"
    assert git(copy, "log", "--format=%s") == "first\n"
    assert not (copy / "big.log").exists()
    assert git(copy, "remote") == ""
    git(copy, "checkout", "-qb", "other")
    git(copy, "commit", "-qam", "second")
    git(copy, "gc", "-q")
    assert state_of(repository) == before
    git(repository, "fsck", "--strict")


def test_changes_are_found_whatever_the_agent_did_to_git(repository, tmp_path):
    found, base, copy = copied(repository, tmp_path, "*.log")
    (copy / "src" / "a.py").write_text("x = 1\ny = 2\nz = 4\n")
    (copy / "b.txt").unlink()
    (copy / "made.py").write_text("pass\n")
    (copy / "big.log").write_text("changed, but ignored\n")
    (copy / "src" / "__pycache__").mkdir()
    (copy / "src" / "__pycache__" / "a.pyc").write_bytes(b"x")
    expected = [("b.txt", "deleted"), ("made.py", "added"), ("src/a.py", "modified")]
    assert [(change.path, change.kind) for change in changes_in(found, base, copy)] == expected
    subprocess.run(["rm", "-rf", ".git"], cwd=copy, check=True)
    assert [(change.path, change.kind) for change in changes_in(found, base, copy)] == expected


@pytest.mark.parametrize(("theirs", "expected"), [("x = 0\ny = 2\nz = 3\n", "x = 0\ny = 2\nz = 4\n"), ("?\n", None)])
def test_what_the_user_changed_meanwhile_is_merged_or_a_conflict(repository, tmp_path, theirs, expected):
    from amc_agents.envs.real.three_way import ThreeWay

    found, base, copy = copied(repository, tmp_path)
    (copy / "src" / "a.py").write_text("x = 1\ny = 2\nz = 4\n")
    (copy / "made.py").write_text("pass\n")
    (repository / "src" / "a.py").write_text(theirs)
    three_way = ThreeWay(found.top, base, copy, scratch=tmp_path)
    if expected is None:
        with pytest.raises(Conflict):
            three_way.apply(changes_in(found, base, copy))
        assert not (repository / "made.py").exists()
    else:
        three_way.apply(changes_in(found, base, copy))
        assert (repository / "made.py").read_text() == "pass\n"
    assert (repository / "src" / "a.py").read_text() == (expected or theirs)


def test_without_git_or_commits(tmp_path):
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "a.txt").write_text("a\n")
    found, base, copy = copied(plain, tmp_path)
    assert (found.git, found.head) == (False, None)
    (copy / "a.txt").write_text("b\n")
    assert [change.path for change in changes_in(found, base, copy)] == ["a.txt"]
    with pytest.raises(ConfigurationError, match="not a folder"):
        Repository.around(tmp_path / "missing")


def test_a_repository_without_commits(tmp_path):
    top = tmp_path / "young"
    top.mkdir()
    git(top, "init", "-q")
    (top / "a.txt").write_text("a\n")
    found, _, copy = copied(top, tmp_path)
    assert (found.git, found.head) == (True, None)
    git(copy, "add", "-A")
    git(copy, "commit", "-qm", "first")
    assert git(copy, "log", "--format=%s") == "first\n"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("tests/", {"tests/a.py", "tests/b/c.py"}), ("*.py", {"d.py"}), ("**/c.py", {"tests/b/c.py"}), ("a", set())],
)
def test_patterns_of_protected_files(pattern, expected):
    assert matching({"tests/a.py", "tests/b/c.py", "d.py"}, [pattern]) == expected


def place(tmp_path, **settings):
    (tmp_path / "1" / "project").mkdir(parents=True)
    return Place(tmp_path / "1", tmp_path / "1" / "project", port=12_340, **settings)


def run(line, where, **settings):
    return asyncio.run(run_command(shell(line), where, "agent", **settings))


def test_secrets_are_passed_by_name_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("A_TOKEN", "hidden")
    monkeypatch.setenv("B_TOKEN", "given")
    where = place(tmp_path, secrets=("B_TOKEN",), own_home=True, variables={"AT": "{copy}:{port}"})
    ended = run('echo "[$A_TOKEN] $B_TOKEN $AT $HOME"; read line; echo "[$line]"', where)
    assert ended.tail() == f"[] given {where.copy}:12340 {where.home}\n[]\n"


def test_daemons_and_a_time_limit(tmp_path):
    where = place(tmp_path)
    ended = run("setsid sleep 100 & sleep 0.2; echo started; exit 3", where)
    assert (ended.status, ended.tail(), marked(where.state)) == (3, "started\n", set())
    assert ended.left >= 1 or sys.platform != "linux"
    assert run("trap '' TERM; sleep 100", where, seconds=0.3).status is None
    assert (marked(where.state), end_processes(where.state)) == (set(), 0)


def test_a_long_output_keeps_its_beginning_and_end(tmp_path):
    where = place(tmp_path)
    ended = run(f"echo first; head -c {5 * HALF_OUTPUT} /dev/zero; echo last", where)
    content = Path(ended.output).read_bytes()
    assert content.startswith(b"first\n")
    assert content.endswith(b"last\n")
    assert len(content) < 2 * HALF_OUTPUT + 100
    with pytest.raises(ConfigurationError, match="cannot be started"):
        asyncio.run(run_command(["no-such-agent"], where, "agent"))
