"""Steps per second and cost of forks of a generated game.

Run it by `python benchmarks/forks.py`.
"""

import asyncio
import os
import time

from amc_agents_textworld import TextWorldWorld, generate_tasks

N_STEPS, N_FORKS = 100, 20


async def main() -> None:
    """Measure, and print."""
    task = next(generate_tasks(1, "train"))
    world = TextWorldWorld()
    await world.reset(task)
    start = time.process_time()
    for _ in range(N_STEPS):
        await world.step("look")
    print(f"{N_STEPS / (time.process_time() - start):.0f} steps per second of CPU time")
    start = time.process_time()
    for seed in range(N_FORKS):
        await (await world.fork(seed)).close()
    print(f"fork and close: {1000 * (time.process_time() - start) / N_FORKS:.1f} ms of CPU time")
    print(f"load average {os.getloadavg()[0]:.1f}")
    await world.close()


if __name__ == "__main__":
    asyncio.run(main())
