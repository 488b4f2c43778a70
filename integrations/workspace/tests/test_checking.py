import os
import subprocess
import sys
import time

import pytest
from amc_agents_workspace import MODULES, Remembered, mutations, run_tests
from amc_agents_workspace.bugs import Bug, original, write_files
from amc_agents_workspace.checking import _Server


@pytest.fixture
def repository(tmp_path):
    def write(source, tests):
        (tmp_path / "code.py").write_text(source)
        (tmp_path / "test_code.py").write_text(f"from code import *\n\n\n{tests}")
        return tmp_path

    return write


def test_the_report_names_the_failed_tests_and_the_lines(repository):
    folder = repository(
        "def half(x):\n    return x / 2\n",
        "def test_good():\n    assert half(2) == 1\n\n\ndef test_wrong():\n    assert half(3) == 1\n\n\n"
        "def test_error():\n    half('')\n",
    )
    report = run_tests(folder)
    assert str(report) == (
        "1 of 3 tests pass.\n"
        "FAILED test_wrong: AssertionError in `assert half(3) == 1`\n"
        "FAILED test_error: TypeError unsupported operand type(s) for /: 'str' and 'int' in `half('')`"
    )
    assert (report.passed, report.success) == (1, False)


def test_a_module_that_cannot_be_imported_fails_every_test(repository):
    folder = repository("def half(x:\n", "def test_a():\n    pass\n\n\ndef test_b():\n    pass\n")
    report = run_tests(folder)
    assert [name for name, _ in report.errors] == ["test_a", "test_b"]
    assert all(error.startswith("SyntaxError") for _, error in report.errors)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("while True: pass", "TimeoutError"),
        ("bytes(1 << 30)", "MemoryError"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("f()", "RecursionError"),
    ],
)
def test_code_that_never_ends_or_takes_everything_only_fails_its_test(repository, body, error):
    started = time.perf_counter()
    report = run_tests(repository(f"def f():\n    {body}\n", "def test_f():\n    f()\n\n\ndef test_g():\n    pass\n"))
    assert report.errors[0][1].startswith(error)
    assert report.errors[1] == ("test_g", "")
    assert time.perf_counter() - started < 20


@pytest.mark.parametrize("body", ["os._exit(0)", "os.kill(os.getpid(), 9)", "os.kill(os.getppid(), 9)"])
def test_code_that_ends_the_process_fails_every_test(repository, body):
    tests = "def test_f():\n    f()\n\n\ndef test_g():\n    pass\n"
    report = run_tests(repository(f"import os\ndef f():\n    {body}\n", tests))
    assert [error for _, error in report.errors] == ["the process of the tests crashed or took too long"] * 2
    assert run_tests(repository("def f():\n    pass\n", tests)).success


def test_code_that_sleeps_is_ended(repository, monkeypatch):
    monkeypatch.setattr("amc_agents_workspace.checking.SECONDS_IN_ALL", 0.5)
    monkeypatch.setattr("amc_agents_workspace.checking._server", _Server())
    report = run_tests(repository("import time\ndef f():\n    time.sleep(60)\n", "def test_f():\n    f()\n"))
    assert [error for _, error in report.errors] == ["the process of the tests crashed or took too long"]


def test_prints_do_not_disturb_the_report(repository):
    folder = repository("import os\nprint('[[')\nos.write(1, b'[')\n", "def test_a():\n    print('x')\n")
    assert run_tests(folder).success


def test_a_folder_without_tests_is_no_success(tmp_path):
    assert not run_tests(tmp_path).success


def test_pytest_agrees(tmp_path):
    module = MODULES["test"][0]
    source = mutations(original(module))[3].apply(original(module))
    write_files(tmp_path, Bug(module, source, ()))
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir=."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    failed = [line.split("::")[1].split()[0] for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert failed == [name for name, error in run_tests(tmp_path).errors if error]
    assert failed


def test_equal_files_are_tested_once(repository):
    runs = []
    remembered = Remembered(lambda folder: runs.append(folder) or run_tests(folder))
    folder = repository("x = 1\n", "def test_x():\n    assert x == 1\n")
    assert remembered(folder) == remembered(folder)
    assert len(runs) == 1
    (folder / "code.py").write_text("x = 2\n")
    assert not remembered(folder).success
