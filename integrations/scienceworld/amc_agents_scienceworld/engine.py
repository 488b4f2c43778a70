"""The ScienceWorld engine: one JVM per process, shared by all worlds of the process.

The engine's random state is global to the JVM, so every call that draws from it runs under a lock and is preceded by a
seed: the answer of a world then depends on its own seed and actions only.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JError
from scienceworld.constants import BASEPATH, ID2TASK, JAR_PATH

from amc_agents.errors import ConfigurationError, WorldError

MEMORY_MB = 512
"""Default maximum heap of the JVM."""
MEMORY_VARIABLE = "AMC_SCIENCEWORLD_MEMORY_MB"
"""Environment variable with another maximum heap."""
_EMPTY_MB, _WORLD_MB = 60, 11
"""Heap of the JVM without a world, and of each world (measured: 40 and 10)."""
TASK_NAMES = tuple(ID2TASK.values())
"""Names of the 30 tasks, in the order of the ScienceWorld paper."""
SPLITS = ("train", "dev", "test")
_FLAGS = (
    # Objects without a hash of their own are otherwise hashed by a random number, which decides the order of listings.
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
    # The parallel collector would start a thread per processor, and needs more memory.
    "-XX:+UseSerialGC",
)
_LOAD_SEED = 0
"""Seed of the initial state, so that a task always starts alike."""

logging.getLogger("py4j").setLevel(logging.CRITICAL)  # It logs every exception that it also raises.


class Answer(NamedTuple):
    """The engine's answer to an action."""

    observation: str
    score: float
    """Total score, from 0 to 1; negative after a fatal mistake."""
    completed: bool


class Engine:
    """A JVM that holds the worlds.

    Args:
        memory_mb: maximum heap of the JVM in MB; None: `AMC_SCIENCEWORLD_MEMORY_MB`, or `MEMORY_MB`.

    Raises:
        ConfigurationError: Java is not installed, or the environment variable is no number of MB.
        WorldError: the JVM did not start.
    """

    def __init__(self, memory_mb: int | None = None) -> None:
        if shutil.which("java") is None:
            raise ConfigurationError("ScienceWorld needs Java, and there is no `java` on the PATH: install a JRE")
        memory_mb = _memory_mb() if memory_mb is None else memory_mb
        self.capacity: int = (memory_mb - _EMPTY_MB) // _WORLD_MB
        """Most worlds at a time: a full JVM would not fail, it would collect garbage without end."""
        self._n_worlds = 0
        self._released: list[Any] = []
        # A released world is loaded again for the next task, which is faster than a new one.
        self._lock = threading.Lock()
        with _engine_errors("start"):
            port, token, process = launch_gateway(
                classpath=JAR_PATH,
                cwd=BASEPATH,
                javaopts=[*_FLAGS, f"-Xmx{memory_mb}m"],
                enable_auth=True,  # Otherwise every user of this machine could run code in the JVM.
                die_on_exit=True,
                return_proc=True,
            )
            self.process_id: int = process.pid
            """Process id of the JVM."""
            self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
            self._random = getattr(getattr(self._gateway.jvm.scala.util, "Random$"), "MODULE$")

    @contextmanager
    def seeded(self, seed: int, what: str) -> Iterator[None]:
        """Reserve the engine, and seed its random state."""
        with self._lock, _engine_errors(what):
            self._random.setSeed(seed)
            yield

    def load(self, name: str, variation: int, simplifications: str = "", *, gold: bool = False) -> Simulation:
        """Create a world in the initial state of a task.

        Args:
            name: one of `TASK_NAMES`.
            variation: number of the variation.
            simplifications: the engine's names, separated by commas, such as `easy`.
            gold: let the engine compute the gold path, which takes seconds.

        Raises:
            ConfigurationError: there is no such task, variation or simplification, or the JVM is full.
        """
        limit = n_variations(name)
        if not 0 <= variation < limit:
            raise ConfigurationError(f"{name} has the variations 0 to {limit - 1}, got {variation}")
        with self.seeded(_LOAD_SEED, f"load {name}"):
            if self._n_worlds >= self.capacity:
                raise ConfigurationError(
                    f"the JVM of ScienceWorld holds {self.capacity} worlds, and all are in use: play fewer tasks at a "
                    f"time (--concurrent 1), close worlds, or set {MEMORY_VARIABLE} ({_WORLD_MB} MB for each world)"
                )
            server = self._released.pop() if self._released else self._new_server()
            possible = ["", "easy", *str(server.getPossibleSimplifications()).split(", ")]
            if unknown := set(simplifications.split(",")) - set(possible):
                self._released.append(server)
                raise ConfigurationError(
                    f"unknown simplification {sorted(unknown)[0]!r}; there are {', '.join(possible[1:])}"
                )
            server.load(name, variation, simplifications, gold)
            self._n_worlds += 1
            return Simulation(self, server)

    def release(self, server: Any) -> None:
        """Keep the interface of a world for the next task."""
        with self._lock:
            self._n_worlds -= 1
            self._released.append(server)

    def _new_server(self) -> Any:
        return self._gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()


class Simulation:
    """A world in the JVM. Created by `Engine.load`."""

    def __init__(self, engine: Engine, server: Any) -> None:
        self._engine, self._server = engine, server

    def step(self, action: str, seed: int) -> Answer:
        """Execute an action; random events are drawn from the seed."""
        # Without the list of valid actions, whose computation takes longer than the step.
        with self._engine.seeded(seed, f"execute {action[:40]!r}"):
            observation = str(self._server.step(action))
            return Answer(observation, float(self._server.getScore()), bool(self._server.getCompleted()))

    def ask(self, method: str) -> Any:
        """Call a method of the engine's interface that has no arguments, such as `getTaskDescription`."""
        with self._engine.seeded(_LOAD_SEED, method):
            return getattr(self._server, method)()

    def close(self) -> None:
        """Release the world."""
        self._engine.release(self._server)


def engine() -> Engine:
    """Return the engine of this process, started by the first call."""
    with _starting:
        return _engine_of(os.getpid())  # A forked process must not use the connections of its parent.


@lru_cache(maxsize=len(TASK_NAMES))
def n_variations(name: str) -> int:
    """Return the number of variations of a task.

    Raises:
        ConfigurationError: the task does not exist.
    """
    if name not in TASK_NAMES:
        raise ConfigurationError(f"unknown ScienceWorld task {name!r}; there are {', '.join(TASK_NAMES)}"[:400])
    owner = engine()
    with owner.seeded(_LOAD_SEED, "count variations"):
        return int(owner._new_server().getTaskMaxVariations(name))


@lru_cache(maxsize=len(TASK_NAMES))
def variations(name: str) -> dict[str, tuple[int, ...]]:
    """Return the variations of a task in each split of `SPLITS`."""
    simulation = engine().load(name, 0)
    try:
        return {split: tuple(simulation.ask(f"getVariations{split.title()}")) for split in SPLITS}
    finally:
        simulation.close()


def _memory_mb() -> int:
    given = os.environ.get(MEMORY_VARIABLE, str(MEMORY_MB))
    if not given.isdecimal() or int(given) < _EMPTY_MB + _WORLD_MB:
        raise ConfigurationError(
            f"{MEMORY_VARIABLE} is {given!r}: expected MB of memory, at least {_EMPTY_MB + _WORLD_MB}"
        )
    return int(given)


@lru_cache(maxsize=1)
def _engine_of(process_id: int) -> Engine:
    return Engine()


_starting = threading.Lock()


@contextmanager
def _engine_errors(what: str) -> Iterator[None]:
    try:
        yield
    except (Py4JError, OSError) as error:
        raise WorldError(
            f"the ScienceWorld engine failed to {what} ({type(error).__name__}: {str(error)[:200]}): start the program "
            "again; {MEMORY_VARIABLE} is its memory"
        ) from error
