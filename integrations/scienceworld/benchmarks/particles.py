"""Steps per second, memory and cost of forks of 15 ScienceWorld particles in one JVM.

    python benchmarks/particles.py

Every particle plays the recorded gold path of another task. Run it on an idle machine: the steps per second of CPU time
are printed too, since they depend less on what else runs.
"""

import asyncio
import json
import os
import resource
import time
from itertools import islice
from pathlib import Path

from amc_agents_scienceworld import ScienceWorld, engine, task_of

N_PARTICLES, N_STEPS, ROUNDS, DEPTH = 15, 20, 6, 10
GOLD = Path(__file__).parents[1] / "tests" / "gold.jsonl"


async def main() -> None:
    """Measure, and print."""
    records = [json.loads(line) for line in islice(GOLD.read_text(encoding="utf-8").splitlines(), N_PARTICLES)]
    tasks = [task_of(record["task"]) for record in records]
    for number in range(ROUNDS):  # The JVM compiles in the first rounds.
        worlds = [ScienceWorld() for _ in tasks]
        await asyncio.gather(*(world.reset(task) for world, task in zip(worlds, tasks, strict=True)))
        start, cpu = time.perf_counter(), _cpu_seconds()
        paths = [record["actions"][:N_STEPS] for record in records]
        await asyncio.gather(*(_play(world, path) for world, path in zip(worlds, paths, strict=True)))
        steps = sum(map(len, paths))
        print(
            f"round {number}: {steps / (time.perf_counter() - start):.0f} steps/s, "
            f"{steps / (_cpu_seconds() - cpu):.0f} per second of CPU time"
        )
        await asyncio.gather(*(world.close() for world in worlds))
    await _forks(tasks, records)
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"memory: JVM {_jvm_memory_mb():.0f} MB, Python {own:.0f} MB; load average {os.getloadavg()[0]:.1f}")


async def _forks(tasks: list, records: list) -> None:
    times = []
    for task, record in zip(tasks, records, strict=True):
        world = ScienceWorld()
        await world.reset(task)
        await _play(world, record["actions"][:DEPTH])
        start = time.perf_counter()
        twin = await world.fork(1)
        times.append(time.perf_counter() - start)
        await asyncio.gather(world.close(), twin.close())
    times.sort()
    print(f"fork at depth {DEPTH}: median {1000 * times[len(times) // 2]:.0f} ms, maximum {1000 * times[-1]:.0f} ms")


async def _play(world: ScienceWorld, actions: list[str]) -> None:
    for action in actions:
        if (await world.step(action)).done:
            break


def _cpu_seconds() -> float:
    """CPU time of this process and of the JVM."""
    fields = Path(f"/proc/{engine().process_id}/stat").read_text().rsplit(")", 1)[1].split()
    jvm = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return jvm + time.process_time()


def _jvm_memory_mb() -> float:
    status = Path(f"/proc/{engine().process_id}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


if __name__ == "__main__":
    asyncio.run(main())
