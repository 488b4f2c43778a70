"""A deep agent repairs a repository: its particles edit files and run the tests in their own folders.

This example needs no key: random edits replace the chat model. Use your own model instead, `model="provider:model"`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from amc_agents_deepagents import ARTIFACTS, TOOLS, ForkingShellBackend
from deepagents import create_deep_agent
from langchain_core.messages import AIMessage, ToolMessage

from amc_agents import AtSteps, amc
from amc_agents.envs import DirectoryFork
from amc_agents.models.seeding import particle_rng
from amc_agents.testing import ScriptedChatModel

MODULE = "def total(prices):\n    return max(prices)\n\n\ndef free(cents):\n    return cents > 50\n"
TESTS = (
    "from shop import free, total\n\nassert total([1, 2]) == 3\nprint('1 passed')\nassert free(50)\nprint('2 passed')\n"
)
EDITS = [("> 50", ">= 50"), ("> 50", "< 50"), ("max(", "sum("), ("max(", "min(")]


def respond(messages):
    """Make a random edit and run the tests, in turn, three times."""
    steps = sum(isinstance(message, ToolMessage) for message in messages)
    if steps == 6:
        return "I have edited the file three times."
    old, new = EDITS[int(particle_rng().integers(len(EDITS)))]
    edit = ("edit_file", {"file_path": "/shop.py", "old_string": old, "new_string": new})
    test = ("execute", {"command": f"{sys.executable} -B tests.py"})
    name, args = test if steps % 2 else edit
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": f"call-{len(messages)}"}])


def passed(trajectories):
    """A critic: the number of assertions that the newest test run passed."""
    reports = [[step.observation for step in path.steps if "execute" in step.action][-1] for path in trajectories]
    return [report.count(" passed") for report in reports]


if __name__ == "__main__":
    repository = Path(tempfile.mkdtemp())
    (repository / "shop.py").write_text(MODULE)
    (repository / "tests.py").write_text(TESTS)
    agent = create_deep_agent(model=ScriptedChatModel(respond=respond), backend=ForkingShellBackend())
    search = amc(agent, passed, tools=TOOLS, n_particles=8, resample=AtSteps(2, 4), beta=0.3, seed=0,
                 environment=lambda state: DirectoryFork(repository, ignore=ARTIFACTS))  # fmt: skip
    with search.run({"messages": [("user", "Make the tests pass.")]}) as run:
        print(run.best.steps[-2].observation, run.best_world.diff(), sep="\n")
