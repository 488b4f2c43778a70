"""Cost of resets, steps and forks in generated rooms.

Run it by `python benchmarks/forks.py`.
"""

import asyncio
import os
import time

from amc_agents_alfworld import AlfworldWorld, generate_tasks

N_TASKS, DEPTH = 6, 10


async def main() -> None:
    """Measure, and print."""
    seconds = {"reset": 0.0, "step": 0.0, "fork": 0.0}
    for task in generate_tasks(N_TASKS, "train"):
        world = AlfworldWorld()
        start = time.process_time()
        await world.reset(task)
        seconds["reset"] += time.process_time() - start
        start = time.process_time()
        for number in range(DEPTH):
            await world.step("inventory" if number % 2 else "look")
        seconds["step"] += (time.process_time() - start) / DEPTH
        start = time.process_time()
        await (await world.fork(0)).close()
        seconds["fork"] += time.process_time() - start
        await world.close()
    for name, total in seconds.items():
        print(f"{name}: {1000 * total / N_TASKS:.1f} ms of CPU time" + (f" at depth {DEPTH}" if name == "fork" else ""))
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    asyncio.run(main())
