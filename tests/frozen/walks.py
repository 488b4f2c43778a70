"""The figures of the house: walks through the package, each in a process of its own, and counts of its files.

A file is touched by a walk if one of its functions runs; what an import runs does not count.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, TESTS = ROOT / "amc_agents", ROOT / "tests"
OTHER_WINGS = ("bench", "operations", "cli")
"""The first wing is the rest of the package: the methods."""


@contextmanager
def walking() -> Iterator[set[str]]:
    """Collect the package's files whose functions run inside the block, in any thread."""
    touched: set[str] = set()

    def see(frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(str(PACKAGE)):
            touched.add(code.co_filename)

    threading.setprofile(see)
    sys.setprofile(see)
    try:
        yield touched
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def plain_agent() -> dict[str, int]:
    """`amc()` and one `invoke` of an agent of LangGraph alone, with features off."""
    from langchain_core.messages import AIMessage
    from langgraph.graph import START, MessagesState, StateGraph

    from amc_agents import AtSteps, amc

    builder = StateGraph(MessagesState)
    builder.add_node("tools", lambda state: {"messages": [AIMessage("on")]})
    builder.add_edge(START, "tools")
    builder.add_conditional_edges("tools", lambda state: "tools" if len(state["messages"]) < 4 else "__end__")
    agent = builder.compile()
    with walking() as touched:
        graph = amc(agent, lambda trajectories: [float(i) for i, _ in enumerate(trajectories)], n_particles=4,
                    resample=AtSteps(1, 2), beta=1.0, seed=0, stateless_tools=True)  # fmt: skip
        graph.invoke({"messages": [("user", "Go.")]})
    modules = [name for name in sys.modules if name == "amc_agents" or name.startswith("amc_agents.")]
    return {"files": len(touched), "modules": len(modules)}


def served_value() -> dict[str, int]:
    """From the string `vllm:http://...` to the values of two trajectories."""
    import shutil
    from importlib import import_module

    from amc_agents import parse_critic
    from amc_agents.critics.render import DIALOGUE
    from amc_agents.critics.saved import Golden
    from amc_agents.critics.server.served import tokenizer_of
    from amc_agents.critics.value.checkpoint import ValueCheckpoint
    from tests.critics.value.fake_vllm import TOKENIZER, FakeVLLM, score, trajectory

    import_module("amc_agents.critics.value.replicas")

    async def ask(folder: Path) -> int:
        async with FakeVLLM() as server:
            with walking() as touched:
                await parse_critic(f"vllm:{server.url}?checkpoint={folder}").values([trajectory(1), trajectory(2)])
        return len(touched)

    with TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(TOKENIZER, folder)
        tokenize = tokenizer_of(folder)
        segments = DIALOGUE.segments(trajectory(1))
        ids = tuple(token for text in segments for token in tokenize(text))
        golden = Golden(segments, ids, score(ids))
        ValueCheckpoint(DIALOGUE, None, (), (golden,), 1e-6, scale=10.0, target="return", beta=0.5).save(folder)
        return {"files": asyncio.run(ask(folder))}


def trained_row() -> dict[str, int]:
    """From a trajectory to the first loss of a value model."""
    from dataclasses import replace

    from amc_agents.training import train_value
    from amc_agents.training.value.train_value import EMBEDDED
    from tests.training.toy_trajectories import decided_by_the_first_answer, tiny_llama

    class Enough(Exception):
        pass

    def stop(progress: Any) -> None:
        raise Enough

    with TemporaryDirectory() as folder, walking() as touched:
        base = tiny_llama(Path(folder))
        touched.clear()
        try:
            train_value(base, decided_by_the_first_answer(8, 2), f"{folder}/out", replace(EMBEDDED, epochs=1),
                        progress=stop)  # fmt: skip
        except Enough:
            return {"files": len(touched)}
    raise AssertionError("the training made no step")


WALKS: dict[str, Callable[[], dict[str, int]]] = {
    walk.__name__: walk for walk in (plain_agent, served_value, trained_row)
}


@cache
def walk_of(name: str) -> dict[str, int]:
    """Walk in a fresh process."""
    command = [sys.executable, "-m", "tests.frozen.walks", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def walked(name: str, figure: str = "files") -> int:
    return walk_of(name)[figure]


def sources(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*.py")) if "__pycache__" not in path.parts]


def n_lines(folder: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in sources(folder))


def n_context_variables() -> int:
    """Calls of `ContextVar` in the package."""
    texts = (text for path in sources(PACKAGE) if "ContextVar" in (text := path.read_text()))
    calls = (node for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    return sum(ast.unparse(call.func).split(".")[-1].split("[")[0] == "ContextVar" for call in calls)


def n_parameters() -> int:
    from amc_agents import amc

    return len(inspect.signature(amc).parameters)


def n_basenames_used_twice() -> int:
    """Names of files that several files of the package share; `__init__.py` and `__main__.py` have no choice."""
    names = Counter(path.name for path in sources(PACKAGE) if not path.name.startswith("__"))
    return sum(number > 1 for number in names.values())


FIGURES: dict[str, Callable[[], int]] = {
    "files touched by amc() and one invoke": partial(walked, "plain_agent"),
    "modules imported by it": partial(walked, "plain_agent", "modules"),
    "files from a vllm: string to a float": partial(walked, "served_value"),
    "files from a training row to the loss": partial(walked, "trained_row"),
    "context variables": n_context_variables,
    "parameters of amc()": n_parameters,
    "basenames used twice": n_basenames_used_twice,
    "lines of amc_agents": partial(n_lines, PACKAGE),
    "files of amc_agents": lambda: len(sources(PACKAGE)),
    "lines of the first wing": lambda: n_lines(PACKAGE) - sum(n_lines(PACKAGE / wing) for wing in OTHER_WINGS),
    "files of the first wing": lambda: (
        len(sources(PACKAGE)) - sum(len(sources(PACKAGE / wing)) for wing in OTHER_WINGS)
    ),
    "lines of tests": partial(n_lines, TESTS),
    "files of tests": lambda: len(sources(TESTS)),
}

if __name__ == "__main__":
    print(json.dumps(WALKS[sys.argv[1]]()))
