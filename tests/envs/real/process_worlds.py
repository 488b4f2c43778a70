"""Objects that live in processes of their own."""

import os
import random
import tempfile
import threading
import time

import numpy as np

from amc_agents.envs.real.changes import Conflict
from amc_agents.errors import EnvironmentStateError, WorldError
from amc_agents.types import TimeStep


class Unpicklable(Exception):
    def __init__(self, a, b):
        super().__init__(a)


class Dice:
    """Rolls of a die, by the generator of the module `random`."""

    sides = 6

    def __init__(self):
        random.seed(0)
        self.rolls = []

    def roll(self, n=1):
        self.rolls += [random.randint(1, self.sides) for _ in range(n)]
        return list(self.rolls)

    def pid(self):
        return os.getpid()

    def fail(self):
        raise KeyError("key")

    def fail_oddly(self):
        raise Unpicklable(1, 2)

    def fail_in_time(self):
        raise TimeoutError("in the world")

    def conflict(self):
        raise Conflict("shop", ["orders 1"])

    def echo(self, value):
        return value

    def array(self, *shape):
        return np.arange(np.prod(shape, dtype=int), dtype="<f4").reshape(shape)

    def object(self):
        return self

    def die(self):
        os._exit(3)

    def hang(self):
        time.sleep(600)

    def start_thread(self):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


class OwnGenerator:
    def __init__(self):
        self.rng = random.Random(0)

    def reseed(self, seed):
        self.rng = random.Random(seed)

    def roll(self):
        return self.rng.random()


class Saved:
    """A number that it saves to a file."""

    def __init__(self):
        self.number = 0

    def set(self, number):
        self.number = number

    async def snapshot(self):
        descriptor, name = tempfile.mkstemp(dir=os.environ["AMC_TEST_FOLDER"])
        os.write(descriptor, str(self.number).encode())
        os.close(descriptor)
        return name

    def restore(self, snapshot):
        try:
            with open(snapshot) as file:
                self.number = int(file.read())
        except FileNotFoundError as error:
            raise WorldError("no such snapshot") from error

    def release(self, snapshot):
        if os.path.exists(snapshot):
            os.unlink(snapshot)


class Broken:
    def __init__(self):
        raise ValueError("no dice")


class Table:
    """Three rolls; the last one pays their sum."""

    def __init__(self):
        self.rolls = None

    def reset(self, instruction):
        random.seed(0)
        self.rolls = []
        return TimeStep.restart(instruction)

    def step(self, action):
        if self.rolls is None or len(self.rolls) == 3:
            raise EnvironmentStateError("reset first")
        self.rolls.append(random.randint(1, 6))
        text = f"{self.rolls}"
        return TimeStep.termination(text, sum(self.rolls)) if len(self.rolls) == 3 else TimeStep.transition(text)


class GlobalDice:
    """A text world that rolls by the generator of the module `random`: three rolls, and the last pays its number."""

    def __init__(self):
        self.rolls = None

    async def reset(self, task):
        random.seed(task.payload)
        self.rolls = []
        return TimeStep.restart(task.instruction)

    async def step(self, action):
        if self.rolls is None or len(self.rolls) == 3:
            raise EnvironmentStateError("reset first")
        if action == "die":
            os._exit(3)
        self.rolls.append(random.randint(1, 6))
        rolled = str(self.rolls)
        return TimeStep.termination(rolled, self.rolls[-1]) if len(self.rolls) == 3 else TimeStep.transition(rolled)

    async def close(self):
        pass


class OwnDice(GlobalDice):
    """Rolls by a generator of its own, which `reseed` replaces."""

    async def reset(self, task):
        self.rng = random.Random(task.payload)
        return await super().reset(task)

    async def step(self, action):
        random.seed(self.rng.random())
        return await super().step(action)

    async def reseed(self, seed):
        self.rng = random.Random(seed)
