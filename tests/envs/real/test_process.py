from __future__ import annotations

import asyncio
import json
import math
import os
import pickle
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from amc_agents.envs.real.changes import Conflict
from amc_agents.envs.real.process import ProcessFork
from amc_agents.envs.real.process_child import receive_answer
from amc_agents.errors import ConfigurationError, EnvironmentStateError, ForkError, WorldError
from amc_agents.testing import check_environment
from amc_agents.types import Task, TimeStep
from tests.envs.real.process_worlds import Broken, Dice, OwnGenerator, Table


@pytest.fixture
async def world():
    world = ProcessFork(Dice)
    yield world
    await world.close()


def alive(process_id: int) -> bool:
    try:
        with open(f"/proc/{process_id}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ended(process_id: int) -> bool:
    """Whether a process ends within ten seconds."""
    for _ in range(200):
        if not alive(process_id):
            return True
        time.sleep(0.05)
    return False


async def test_methods_run_in_another_process(world):
    assert world.object.pid() != os.getpid()
    assert len(world.object.roll(n=3)) == 3
    assert world.object.sides == 6
    assert world.object.rolls == world.call("roll", 0)


async def test_a_fork_has_the_same_past_and_a_future_of_its_seed(world):
    past = world.object.roll(5)
    twins = [await world.fork(seed) for seed in (1, 1, 2)]
    futures = [twin.object.roll(20) for twin in twins]
    assert all(future[:5] == past for future in futures)
    assert futures[0] == futures[1] != futures[2]
    assert world.object.rolls == past
    grandchild = await twins[2].fork(3)
    assert grandchild.object.rolls == futures[2]
    for each in (*twins, grandchild):
        await each.close()


async def test_an_object_with_its_own_generator_is_reseeded():
    world = ProcessFork(OwnGenerator)
    twins = [await world.fork(seed) for seed in (1, 1, 2)]
    rolls = [twin.object.roll() for twin in twins]
    assert rolls[0] == rolls[1] != rolls[2]
    for each in (*twins, world):
        await each.close()


async def test_exceptions_of_the_object_are_raised(world):
    with pytest.raises(KeyError, match="key"):
        world.object.fail()
    with pytest.raises(WorldError, match="Unpicklable: 1"):
        world.object.fail_oddly()
    with pytest.raises(TimeoutError, match="in the world"):
        world.object.fail_in_time()
    with pytest.raises(Conflict, match="shop has changed") as caught:
        world.object.conflict()
    assert caught.value.places == ("orders 1",)
    with pytest.raises(AttributeError, match="missing"):
        world.object.missing  # noqa: B018
    assert len(world.object.roll()) == 1, "it goes on"


async def test_answers_are_plain_data(world):
    values = [
        None, True, 1 << 80, -0.5, math.inf, "\ud800 text", b"\x00\xff", [1, (2, [3])], {(1, "a"): {"b": b""}}, {1, 2},
        frozenset("ab"), TimeStep.termination("end", 1.0),
    ]  # fmt: skip
    answers = world.object.echo(values)
    assert answers == values
    assert [type(answer) for answer in answers] == [type(value) for value in values]
    assert math.isnan(world.object.echo(math.nan))
    array = world.object.array(2, 3)
    assert (array.dtype, array.tolist()) == ("<f4", [[0, 1, 2], [3, 4, 5]])
    assert world.object.array(0, 3).shape == (0, 3)
    assert world.object.echo(array[1, 2]) == 5
    with pytest.raises(WorldError, match=r"cannot be sent: a ProcessFork returns None, .* got Dice: return its parts"):
        world.object.object()
    assert len(world.object.roll()) == 1, "it goes on"


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def answered(content, length=None):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall((len(content) if length is None else length).to_bytes(8, "big") + content)
        theirs.shutdown(socket.SHUT_WR)
        return receive_answer(ours)


@pytest.mark.parametrize(
    ("content", "length"),
    [
        (b"", None),
        (b"[" * 100_000, None),
        (b'{"value": {"builtins.eval": ["1"]}}', None),
        (b'{"value": {"array": ["|O", [1], {"bytes": "AAAAAAAAAAA="}]}}', None),
        (b'{"failure": {}}', None),
        (b"x", 1 << 62),
    ],
)
def test_hostile_answers_are_refused(content, length):
    with pytest.raises(WorldError, match="sent an answer"):
        answered(content, length)


@pytest.mark.parametrize("kind", ["builtins.exec", "os.system", "builtins.SystemExit", "subprocess.Popen"])
def test_an_answer_names_no_class_but_exceptions(kind):
    failure = answered(json.dumps({"failure": {"kind": kind, "text": "t", "args": ["x"], "attributes": {}}}).encode())
    assert (type(failure.error), str(failure.error)) == (WorldError, f"{kind.split('.')[1]}: t")


def test_an_answer_is_not_unpickled(tmp_path):
    with pytest.raises(WorldError, match="cannot be read"):
        answered(pickle.dumps(Hostile(tmp_path / "ran")))
    assert list(tmp_path.iterdir()) == []


async def test_closing_ends_the_process_whoever_is_closed_first(world):
    twin = await world.fork(1)
    first, second = world.object.pid(), twin.object.pid()
    await world.close()
    assert ended(first)
    assert len(twin.object.roll()) == 1, "a copy lives on without the process that it came from"
    await twin.close()
    await twin.close()
    assert ended(second)
    with pytest.raises(EnvironmentStateError, match="closed"):
        twin.object.roll()


async def test_a_process_that_dies_is_an_error(world):
    with pytest.raises(WorldError, match="died"):
        world.object.die()
    with pytest.raises(EnvironmentStateError, match="closed"):
        world.object.roll()


async def test_a_call_that_hangs_is_ended():
    world = ProcessFork(Dice, timeout=0.5)
    twin = await world.fork(1)
    process_id = twin.object.pid()
    with pytest.raises(WorldError, match=r"did not answer within 0\.5 s"):
        twin.object.hang()
    assert ended(process_id)
    assert len(world.object.roll()) == 1
    await world.close()


async def test_a_process_with_threads_is_not_forked(world):
    world.object.start_thread()
    with pytest.raises(ForkError, match="has 2 threads"):
        await world.fork(1)
    assert len(world.object.roll()) == 1


def test_what_cannot_be_created_is_an_error():
    with pytest.raises(ConfigurationError, match="not a lambda"):
        ProcessFork(lambda: Dice())
    with pytest.raises(WorldError, match=r"could not be created: ValueError\('no dice'\)"):
        ProcessFork(Broken)


def test_an_object_of_the_main_script_can_be_sent(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import asyncio
            from amc_agents.envs.real.process import ProcessFork

            class Counter:
                def __init__(self):
                    self.n = 0
                def add(self):
                    self.n += 1
                    return self.n

            async def main():
                world = ProcessFork(Counter)
                world.object.add()
                twin = await world.fork(1)
                print(world.object.add(), twin.object.add(), twin.object.add())
                await world.close()
                await twin.close()

            if __name__ == "__main__":
                asyncio.run(main())
            """
        )
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "2 2 3\n", done.stderr


@pytest.mark.thorough
def test_processes_end_with_a_killed_caller(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import asyncio, os, signal
            from amc_agents.envs.real.process import ProcessFork
            from tests.envs.real.process_worlds import Dice

            world = ProcessFork(Dice)
            twin = asyncio.run(world.fork(1))
            print(world.object.pid(), twin.object.pid(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert all(ended(int(process_id)) for process_id in done.stdout.split()), done.stderr


class Played:
    """The table in its process, as a text world."""

    def __init__(self, world=None):
        self.world = world or ProcessFork(Table)

    async def reset(self, task):
        return await asyncio.to_thread(self.world.object.reset, task.instruction)

    async def step(self, action):
        return await asyncio.to_thread(self.world.object.step, action)

    async def fork(self, seed):
        return Played(await self.world.fork(seed))

    async def close(self):
        await self.world.close()


@pytest.mark.thorough
async def test_it_keeps_the_contract_of_environments():
    await check_environment(Played, Task("table", "Roll."), ["roll", "roll", "roll"], stochastic=True)
