from __future__ import annotations

import numpy as np
import pytest

from amc_agents.run import Population, Run, WeighingPoint
from amc_agents.types import Step, Task, Trajectory
from amc_agents.usage import Usage

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[2J\u202e&'\"`]]><!--"
"""Markup, a terminal's escape sequence and a direction override."""


def played(*actions: str, reward: float = 0.0, text: str = "") -> Trajectory:
    steps = [Step(action, f"saw {action}{text}", f"think {action}") for action in actions]
    steps[-1] = Step(actions[-1], f"saw {actions[-1]}{text}", f"think {actions[-1]}", reward)
    return Trajectory(Task(f"t{text}", f"Do it.{text}"), tuple(steps), done=True)


@pytest.fixture
def make_run():
    """Builds a run of three particles: at step 2 slot 0 retires, slot 1 is dropped, and slot 2 continues in all."""

    def make(text: str = "") -> Run:
        point = WeighingPoint(
            2, np.array([1.0, 0.1, 0.6]), np.log([0.5, 0.1, 0.4]), 2.4, np.array([2, 2, 2]), (0,),
            dropped={1: played("b1", "b2", text=text)},
        )  # fmt: skip
        end = WeighingPoint(4, np.array([0.0, 1.0, np.nan]), np.array([-1.0, 0.0, -np.inf]), 1.5, None)
        final = (
            played("c1", "c2", "d3", text=text),
            played("c1", "c2", "e3", "e4", reward=1.0, text=text),
            played("c1", "c2", "f3", text=text),
            played("a1", "a2", reward=1.0, text=text),
        )
        population = Population(
            final, np.array([-1.0, 0.0, -np.inf, -0.7]), np.zeros(4), np.array([0.0, 1.0, np.nan, 1.0]),
            (False, False, True, False),
        )  # fmt: skip
        return Run(
            best=final[1], best_index=1, population=population, history=(point, end), log_evidence=0.5,
            usage={"policy": Usage(11, 1000, 200, 300), "critic": Usage(5, 400)}, seed=7,
            config={"critic": f"uniform{text}", "beta": 1.0}, select="return", deployable=False,
            notes=(f"one particle failed{text}",), usage_by_model={"policy": {f"m{text}": Usage(11, 1000, 200, 300)}},
        )  # fmt: skip

    return make
