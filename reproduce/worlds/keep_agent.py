"""Scripted policies of the generated Z-machine games, for `amc bench`: the expert, with random commands.

python reproduce/worlds/keep_agent.py test 200 > tasks.jsonl
amc bench keep_agent:policy --tasks tasks.jsonl --split all --out FOLDER
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from amc_agents_jericho import expert_agent

from amc_agents import text_agent
from amc_agents.testing import noisy_expert
from amc_agents.types import Task


@dataclass(frozen=True)
class KeepPolicy:
    """The expert with errors at a rate. No model is involved, so the temperature is unused."""

    error_rate: float
    horizon: int = expert_agent.horizon

    def make_agent(self, temperature: float) -> Any:
        """Return the agent."""
        return text_agent(noisy_expert(self.error_rate))

    def make_environment(self, task: Task) -> expert_agent.KeepById:
        """Return a fresh world."""
        return expert_agent.KeepById()


policy = KeepPolicy(expert_agent.ERROR_RATE)
"""The policy that is measured."""
surrogate = KeepPolicy(0.3)
"""A better policy, whose play trains a value model for the other one."""


if __name__ == "__main__":
    expert_agent.main(int(sys.argv[2]), sys.argv[1])
