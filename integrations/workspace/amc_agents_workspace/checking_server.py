"""Runs tests in forks of itself, which takes a fifth of the time of a new interpreter.

    python -I -S -B checking_server.py SECONDS_PER_TEST SECONDS_IN_ALL MEGABYTES

Reads a folder per line. Answers with a line, the list of (name, error) of the folder's test functions, "" for a passed
test; or with an empty line if the process of the tests crashed or took too long. What the tests print is discarded.
"""

import os
import resource
import signal
import sys


def main(seconds_per_test: str, seconds_in_all: str, megabytes: str) -> None:
    """Answer until the input ends."""
    limit = int(megabytes) << 20
    for line in sys.stdin:
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            signal.setitimer(signal.ITIMER_REAL, float(seconds_in_all))  # Kills the process.
            os.chdir(line.rstrip("\n"))
            _answer(write, float(seconds_per_test))
            os._exit(0)  # Threads that a test has left behind do not keep the process.
        os.close(write)
        with open(read, encoding="utf-8", errors="replace") as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        print(answer if answer.endswith("]") else "", flush=True)


def _answer(write: int, seconds: float) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    signal.signal(signal.SIGVTALRM, _stop)
    sys.path.insert(0, os.getcwd())
    files = sorted(name for name in os.listdir() if name.startswith("test_") and name.endswith(".py"))
    results = [result for file in files for result in _run_file(file, seconds)]
    with open(write, "w", encoding="utf-8") as pipe:
        pipe.write(ascii(results))


def _run_file(file: str, seconds: float) -> list[tuple[str, str]]:
    with open(file, encoding="utf-8") as opened:
        text = opened.read()
    names = [line[4:].split("(")[0] for line in text.splitlines() if line.startswith("def test_")]
    space: dict[str, object] = {"__name__": file[:-3]}
    broken = _attempt(lambda: exec(compile(text, file, "exec"), space), file, text, seconds)
    if broken:
        return [(name, broken) for name in names]
    return [(name, _attempt(space[name], file, text, seconds)) for name in names]


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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks; the input ends with it.
    try:
        main(*sys.argv[1:])
    except BrokenPipeError:
        os._exit(0)
