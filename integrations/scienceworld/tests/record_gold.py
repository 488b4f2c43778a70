"""Record the gold paths of two test variations of every task, with the score after each action, in gold.jsonl.

PYTHONPATH=. python tests/record_gold.py
"""

import asyncio
import json
from pathlib import Path

from amc_agents_scienceworld import ScienceWorld, generate_tasks, gold_path

OUT = Path(__file__).with_name("gold.jsonl")


async def record() -> None:
    lines = []
    for task in generate_tasks(60, "test"):
        world = ScienceWorld()
        await world.reset(task)
        actions, returns, done = [], [0.0], False
        for action in gold_path(task.payload.name, task.payload.variation):
            answer = await world.step(action)
            actions.append(action)
            returns.append(returns[-1] + answer.reward)
            if done := answer.done:
                break
        await world.close()
        scores = [round(100 * value) for value in returns[1:]]
        lines.append(json.dumps({"task": task.id, "done": done, "actions": actions, "scores": scores}))
        print(task.id, len(actions), done, scores[-1], flush=True)
    OUT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(record())
