"""Environments for the tests."""

import random

import gymnasium
import numpy as np
from amc_agents_gymnasium import TextInterface
from gymnasium import spaces

WORDS = spaces.Text(20)


class Guess(gymnasium.Env):
    """Find a number from 1 to 9, in at most ten guesses."""

    observation_space = action_space = WORDS

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = int(self.np_random.integers(1, 10))
        self.left = 10
        return "Guess a number from 1 to 9.", {}

    def step(self, action):
        self.left -= 1
        right = action == str(self.number)
        text = "right" if right else f"wrong, {self.left} left"
        return text, float(right), right, self.left == 0 and not right, {}


class Dice(gymnasium.Env):
    """Three rolls by the global generators."""

    observation_space = action_space = WORDS

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        random.seed(seed)
        np.random.seed(seed)
        self.rolls = []
        return "Roll three times.", {}

    def step(self, action):
        self.rolls += [random.randint(1, 6) + int(np.random.randint(1, 7))]
        return str(self.rolls), 0.0, len(self.rolls) == 3, False, {}


class Both(Guess):
    def step(self, action):
        return "over", 0.0, True, True, {}


class NotText(Guess):
    def step(self, action):
        return "over", float("nan"), False, False, {}


GUESSING = TextInterface(Guess)
