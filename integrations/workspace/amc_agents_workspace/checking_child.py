"""Runs in a child process: calls every test function of the current folder.

    python -I checking_child.py SECONDS MEGABYTES

Prints a JSON list of [name, error], with "" as the error of a passed test. What the tests print is discarded.
"""

import json
import os
import resource
import signal
import sys
from pathlib import Path


def main(seconds: str, megabytes: str) -> None:
    """Run the tests, each with a limit of CPU time, in limited memory."""
    printed = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    limit = int(megabytes) << 20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGVTALRM, _stop)
    sys.path.insert(0, os.getcwd())
    results = []
    for path in sorted(Path().glob("test_*.py")):
        results += _run_file(path, float(seconds))
    with printed:
        json.dump(results, printed)


def _run_file(path: Path, seconds: float) -> list[tuple[str, str]]:
    text = path.read_text(encoding="utf-8")
    names = [line[4:].split("(")[0] for line in text.splitlines() if line.startswith("def test_")]
    space: dict[str, object] = {"__name__": path.stem}
    broken = _attempt(lambda: exec(compile(text, path.name, "exec"), space), path.name, text, seconds)
    if broken:
        return [(name, broken) for name in names]
    return [(name, _attempt(space[name], path.name, text, seconds)) for name in names]


def _attempt(call: object, file: str, text: str, seconds: float) -> str:
    """Return the error of a call in one line; empty if there is none."""
    try:
        # CPU time, so that a busy machine fails no test.
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        call()  # type: ignore[operator]
    except BaseException as error:
        return _described(error, file, text.splitlines())
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return ""


def _described(error: BaseException, file: str, lines: list[str]) -> str:
    """Name the error and the last line of the test file that it passed through."""
    at = [0]
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == file:
            at.append(frame.tb_lineno)
        frame = frame.tb_next
    where = lines[at[-1] - 1].strip() if at[-1] else ""
    message = str(error).splitlines()[0][:200] if str(error) else ""
    return " ".join(f"{type(error).__name__} {message} in `{where}`".split())


def _stop(*_: object) -> None:
    raise TimeoutError("the test took too long")


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # Threads that a test has left behind do not keep the process.
