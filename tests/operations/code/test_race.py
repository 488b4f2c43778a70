"""`amc code`: the first copy that passes wins, its changes come back, and whatever happens nothing else changes."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from amc_agents.operations.code.processes import marked
from tests.operations.code.test_copies import git, repository_in, state_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="process groups")
CHECK = "python3 -c 'import sys; sys.path.insert(0, \"src\"); import a; print(a.z); assert a.z == 9'"
AGENT = "sleep 0.$(( AMC_CODE_PORT % 7 )); sed -i 's/z = 3/z = 9/' src/a.py"


@pytest.fixture
def repository(tmp_path):
    return repository_in(tmp_path)


@pytest.fixture
def amc(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("AMC_CODE_STATE", str(tmp_path / "state"))

    def start(*arguments, **settings):
        line = "from amc_agents.cli import main; main()"
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([sys.executable, "-c", line, "code", *arguments], cwd=repository, **streams, **settings)

    def run(*arguments):
        process = start(*arguments)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    vars(run).update(start=start, state=tmp_path / "state")
    return run


def raced(amc, agent=AGENT, *options, check=CHECK):
    return amc("-n", "2", "--check", check, *options, "--", "sh", "-c", agent)


def test_the_first_that_passes_wins_and_clean_removes_all(amc, repository):
    status, out, err = raced(amc, AGENT, "--json")
    assert status == 0, err
    run = json.loads(out)
    assert [change["path"] for change in run["copies"][run["winner"] - 1]["changes"]] == ["src/a.py"]
    assert (repository / "src" / "a.py").read_text() == "x = 1\ny = 2\nz = 9\n"
    assert git(repository, "status", "--porcelain") == "M  b.txt\n M src/a.py\n?? new.txt\n"
    assert "+z = 9" in amc("diff")[1]
    assert amc("clean")[0] == 0
    assert not amc.state.exists()


@pytest.mark.parametrize(
    ("check", "said"),
    [
        ("true", "passes on the untouched files"),
        ("no-such-program", "cannot be run"),
        ("echo no; false", "trust-check"),
    ],
)
def test_a_check_that_cannot_decide_is_refused(amc, repository, check, said):
    before = state_of(repository)
    status, _, err = raced(amc, check=check)
    assert (status, said in err) == (2, True), err
    assert state_of(repository) == before


def test_an_edit_of_the_check_does_not_count(amc, repository):
    (repository / "test_z.py").write_text(
        "import sys; sys.path.insert(0, 'src'); import a; print(a.z); assert a.z == 9\n"
    )
    status, _, err = raced(amc, "echo pass > test_z.py", check="python3 test_z.py")
    assert status == 1, err
    assert "assert" in (repository / "test_z.py").read_text()
    status, _, err = amc("take", "1")
    assert (status, "has no changes to take" in err) == (2, True)


@pytest.mark.parametrize(
    "agent",
    [
        "rm -rf .git",
        *(
            pytest.param(agent, marks=pytest.mark.thorough)
            for agent in ("rm -rf ../project", "mkfifo pipe", "exit 7", "setsid sleep 60 & exit 0", "read line")
        ),
    ],
)
def test_agents_that_fail_leave_the_repository_as_it_was(amc, repository, agent):
    before = state_of(repository)
    status, out, err = raced(amc, agent)
    assert status == 1, (out, err)
    assert state_of(repository) == before
    assert marked(amc.state) == set()


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_a_kill_leaves_the_repository_or_exactly_the_patch(amc, repository, number):
    before = state_of(repository)
    for seed in range(3):
        process = amc.start("-n", "2", "--check", CHECK, "--", "sh", "-c", f"{AGENT}; sleep 1", start_new_session=True)
        time.sleep(random.Random(seed).uniform(0.5, 3.5))
        os.kill(process.pid, number)
        process.communicate(timeout=60)
        assert amc("clean")[0] == 0
        assert not amc.state.exists()
        assert marked(amc.state) == set()
        git(repository, "fsck", "--strict")
        after = state_of(repository)
        if after != before:
            changed = {str(name) for name in {*after, *before} if after.get(name) != before.get(name)}
            assert changed - {".git/index"} == {"src/a.py"}
            (repository / "src" / "a.py").write_text("x = 1\ny = 2\nz = 3\n")
            before = state_of(repository)


@pytest.mark.parametrize("record", [{}, {"version": 1}, {"version": 2, "copies": [{"steps": 1}]}])
def test_a_record_of_another_version_is_said_and_can_be_removed(amc, record):
    folder = amc.state / "1129-0000-abcd"
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    (folder / "run.json").write_text(json.dumps(record))
    status, _, err = amc("show")
    assert (status, "Traceback" in err) == (2, False)
    assert "remove it with `amc code clean`" in err
    assert amc("clean")[0] == 0
    assert not amc.state.exists()
