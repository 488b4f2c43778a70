"""Tree search with the scripted policy of the generated Z-machine games.

    python reproduce/worlds/keep_trees.py tune TASKS VALUE FOLDER    # prints the mean return of each size of search
    python reproduce/worlds/keep_trees.py play TASKS VALUE FOLDER [SEEDS]

A tree search samples turns at states, outside of any particle, so the policy cannot read its world as it does in
`amc bench`: here it reads the dialogue, from which the expert knows the state just as well. The searches end at their
first success. Results are stored as `amc bench` stores them, task by task; a second call goes on.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from amc_agents_jericho import GameTask
from amc_agents_jericho.expert_agent import task_of
from langchain_core.messages import AIMessage, BaseMessage

from amc_agents.bench.methods import LATS, TREE_OF_THOUGHTS, TreeSettings
from amc_agents.bench.records import RunResult, cost_of, particles_of, read_run_results, scores_of
from amc_agents.bench.report import measured
from amc_agents.bench.runner import run_seed
from amc_agents.bench.searches import tree_search
from amc_agents.bench.statistics import estimate
from amc_agents.files import JsonLinesFile
from amc_agents.messages import turn_of
from amc_agents.models.seeding import particle_rng
from amc_agents.testing import ScriptedChatModel
from amc_agents.types import Task
from reproduce.worlds.keep_agent import policy
from reproduce.worlds.word_value import WordValue

RECORDS = "records.jsonl"
MOST_CALLS = 345
"""Policy calls of a search: those of 15 particles in 23 steps."""
BEAMS, SAMPLES = ((2, 7), (3, 5), (5, 3)), (2, 3, 5, 8)
"""Width x samples of Tree of Thoughts, and samples per expansion of LATS: the sizes that `tune` tries."""
TRIED = {
    **{f"{TREE_OF_THOUGHTS}-{width}x{k}": TreeSettings("beam", samples=k, width=width) for width, k in BEAMS},
    **{f"{LATS}-{k}": TreeSettings("mcts", samples=k, max_calls=MOST_CALLS) for k in SAMPLES},
}
SEARCHES = {TREE_OF_THOUGHTS: TRIED[f"{TREE_OF_THOUGHTS}-5x3"], LATS: TRIED[f"{LATS}-3"]}
"""The best of each kind on 40 training games."""


def reading_expert(game: GameTask, error_rate: float) -> ScriptedChatModel:
    """Return the expert with errors, which reads the commands and answers of the dialogue."""

    def respond(messages: Sequence[BaseMessage]) -> str:
        rng, said = particle_rng(), [turn_of(message)[1] for message in messages if isinstance(message, AIMessage)]
        answers = [message.text for message in messages if message.type == "human"][1:]
        assert rng is not None
        assert game.expert is not None
        if rng.random() < error_rate:
            return f"Action: {game.commands[int(rng.integers(len(game.commands)))]}"
        return f"Action: {game.expert(list(zip(said, answers, strict=True)))}"

    return ScriptedChatModel(respond=respond)


async def search(name: str, method: str, settings: TreeSettings, critic: WordValue, seed: int) -> RunResult:
    """Search one game."""
    task: Task = task_of(name)
    model, start = reading_expert(task.payload, policy.error_rate), time.perf_counter()
    run = await tree_search(
        model, critic, lambda: policy.make_environment(task), task, settings,
        horizon=policy.horizon, seed=run_seed(seed, name, method), success=1.0,
    )  # fmt: skip
    scores = scores_of(run, single=False, pick_means_something=False)
    return RunResult(method, name, seed, scores, cost_of(run, time.perf_counter() - start), particles=particles_of(run))


def play(tasks: Path, value: str, folder: Path, searches: Mapping[str, TreeSettings], seeds: int) -> list[RunResult]:
    """Search every game by every method, with every seed."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [json.loads(line)["id"] for line in tasks.read_text(encoding="utf-8").splitlines()]
    critic = WordValue(value)
    done = {record.key for record in read_run_results(folder)} if (folder / RECORDS).is_file() else set()
    with JsonLinesFile(folder / RECORDS) as records:
        for seed, name, method in product(range(seeds), names, searches):
            if (method, name, seed) not in done:
                records.append(asyncio.run(search(name, method, searches[method], critic, seed)).to_json())
    return read_run_results(folder)


def main(command: str, tasks: str, value: str, folder: str, seeds: str = "1") -> None:
    """Execute a command."""
    searches = TRIED if command == "tune" else SEARCHES
    runs = play(Path(tasks), value, Path(folder), searches, int(seeds))
    for method in searches:
        print(method, estimate(measured([run for run in runs if run.method == method], "oracle")))


if __name__ == "__main__":
    main(*sys.argv[1:])
