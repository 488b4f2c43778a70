"""Tree search with the scripted policy of the generated Z-machine games.

    python reproduce/worlds/keep_trees.py TASKS VALUE FOLDER

A tree search samples turns at states, outside of any particle, so the policy cannot read its world as it does in
`amc bench`: here it reads the dialogue, from which the expert knows the state just as well. The searches end at their
first success. Results are stored as `amc bench` stores them, task by task; a second call goes on.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from amc_agents_jericho import GameTask
from amc_agents_jericho.expert_agent import task_of
from keep_agent import policy
from langchain_core.messages import BaseMessage
from word_value import WordValue

from amc_agents.bench.methods import LATS, TREE_OF_THOUGHTS
from amc_agents.bench.records import RunResult
from amc_agents.bench.runner import run_seed
from amc_agents.bench.scores import cost_of, particles_of, scores_of
from amc_agents.bench.tree.search import tree_search
from amc_agents.bench.tree.settings import TreeSettings
from amc_agents.files import JsonLinesFile
from amc_agents.messages import turn_of
from amc_agents.models.seeding import particle_rng
from amc_agents.testing import ScriptedChatModel
from amc_agents.types import Task

SEARCHES = {
    TREE_OF_THOUGHTS: TreeSettings("beam", samples=3, width=5),
    LATS: TreeSettings("mcts", samples=5, max_calls=345),
}
"""As many samples per step, or as many calls, as 15 particles make in 23 steps."""


def reading_expert(game: GameTask, error_rate: float) -> ScriptedChatModel:
    """Return the expert with errors, which reads the commands and answers of the dialogue."""

    def respond(messages: Sequence[BaseMessage]) -> str:
        rng, said = particle_rng(), [turn_of(message)[1] for message in messages if message.type == "ai"]
        answers = [message.text for message in messages if message.type == "human"][1:]
        assert rng is not None
        assert game.expert is not None
        if rng.random() < error_rate:
            return f"Action: {game.commands[int(rng.integers(len(game.commands)))]}"
        return f"Action: {game.expert(list(zip(said, answers, strict=True)))}"

    return ScriptedChatModel(respond=respond)


async def search(name: str, method: str, critic: WordValue) -> RunResult:
    """Search one game."""
    task: Task = task_of(name)
    model, start = reading_expert(task.payload, policy.error_rate), time.perf_counter()
    run = await tree_search(
        model, critic, lambda: policy.make_environment(task), task, SEARCHES[method],
        horizon=policy.horizon, seed=run_seed(0, name, method), success=1.0,
    )  # fmt: skip
    scores = scores_of(run, single=False, pick_means_something=False)
    return RunResult(method, name, 0, scores, cost_of(run, time.perf_counter() - start), particles=particles_of(run))


def main(tasks: Path, value: str, folder: Path) -> None:
    """Search every game by every method."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [json.loads(line)["id"] for line in tasks.read_text(encoding="utf-8").splitlines()]
    critic, file = WordValue(value), folder / "records.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    done = {(record["task"], record["method"]) for record in map(json.loads, lines)}
    with JsonLinesFile(file) as records:
        for name in names:
            for method in SEARCHES:
                if (name, method) not in done:
                    records.append(asyncio.run(search(name, method, critic)).to_json())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
