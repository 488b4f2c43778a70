"""Repair a repository: each particle edits and tests its own copy of the folder, and the winner's diff is printed.

This example needs no key: random edits replace the chat model. LangChain's deep agents edit files by the same contract
(`integrations/deepagents`).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool

from amc_agents import AtSteps, amc, current_environment, effect
from amc_agents.envs import DirectoryFork
from amc_agents.models.seeding import particle_rng
from amc_agents.testing import ScriptedChatModel

FILES = {"shop.py": "def total(prices):\n    return max(prices)\n\n\ndef free(cents):\n    return cents > 50\n",
         "tests.py": "from unittest import TestCase\n\nfrom shop import free, total\n\n\nclass Shop(TestCase):\n"
         "    def test_total(self):\n        assert total([1, 2]) == 3\n\n    def test_free(self):\n"
         "        assert free(50)\n\n    def test_not_free(self):\n        assert not free(49)\n"}  # fmt: skip
EDITS = [("> ", ">= "), ("> ", "< "), ("max(", "sum("), ("max(", "min("), ("50", "49")]


@tool
@effect("world")
def edit(path: str, old: str, new: str) -> str:
    """Replace a text in a file, and run the tests."""
    folder = current_environment(DirectoryFork).path
    (folder / path).write_text((folder / path).read_text().replace(old, new))
    command = [sys.executable, "-B", "-m", "unittest", "tests"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True).stderr


def respond(messages):
    """Make a random edit, four times."""
    old, new = EDITS[int(particle_rng().integers(len(EDITS)))]
    call = {"name": "edit", "args": {"path": "shop.py", "old": old, "new": new}, "id": f"call-{len(messages)}"}
    return AIMessage("", tool_calls=[call]) if len(messages) < 9 else "I have edited the file four times."


def few_failures(trajectories):
    """A critic: minus the number of failed tests in the newest report."""
    reports = [[step.observation for step in path.steps if step.observation][-1] for path in trajectories]
    return [-report.count("FAIL:") - report.count("ERROR:") for report in reports]


if __name__ == "__main__":
    repository = Path(tempfile.mkdtemp())
    [(repository / name).write_text(text) for name, text in FILES.items()]
    agent = create_agent(ScriptedChatModel(respond=respond), [edit])
    search = amc(agent, few_failures, n_particles=8, resample=AtSteps(1, 2, 3), beta=0.3, seed=0,
                 environment=lambda state: DirectoryFork(repository))  # fmt: skip
    with search.run({"messages": [("user", "Make the tests pass.")]}) as run:
        print(run.best.steps[-2].observation, run.best_world.diff(), sep="\n")
