"""Jobs for tests of Ray: some machines of the cluster hang, so that a test can kill them while they work."""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from amc_agents.bench.plan import ComparisonPlan
from amc_agents.bench.runner import ComparisonWork


def node_id() -> str:
    import ray

    return ray.get_runtime_context().get_node_id()


@dataclass(frozen=True)
class HangingJob:
    """A plan's runs. On the node that the file `doomed` names, the second run of a call never ends."""

    plan: ComparisonPlan
    shared: Path
    """A folder on this machine, which all nodes of the test see."""
    command: str = "amc bench"

    def prepare(self):
        return HangingWork(self.plan.comparison(), shared=self.shared)


@dataclass(frozen=True)
class HangingWork(ComparisonWork):
    shared: Path = Path()

    @contextmanager
    def executor(self, out, worker):
        with super().executor(out, worker) as execute:

            async def hanging(item):
                with (self.shared / f"played-{node_id()}").open("a") as log:
                    log.write("\t".join(map(str, item.key)) + "\n")
                if node_id() == (self.shared / "doomed").read_text() and item.name != "react":
                    (self.shared / "hanging").touch()
                    await asyncio.Event().wait()
                return await execute(item)

            yield hanging


def shipped_files() -> tuple[str, list[str]]:
    """The working directory of a call, and what is in it."""
    return os.getcwd(), sorted(str(path) for path in Path().rglob("*") if path.is_file())
