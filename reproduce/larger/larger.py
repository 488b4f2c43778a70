"""A larger policy, and exact V^pi: the rehearsal on a GPU.

    python reproduce/larger/larger.py policy --seconds 290    # trains the policy
    python reproduce/larger/larger.py collect --tasks 4000    # its runs on training tasks
    python reproduce/larger/larger.py value                   # trains the value model
    python reproduce/larger/larger.py tune oracle learned    # each critic's setting, on training tasks
    python reproduce/larger/larger.py play oracle learned rollouts --tasks 240 --exact 40    # test tasks
    python reproduce/larger/larger.py rank                    # AUCs
    python reproduce/larger/larger.py pack

Commands that play take `--processes`, which share the GPU. `tune`, `play` and `rank` resume: if a process has run out
of GPU memory, repeat the command with a smaller `--at-once`. LARGER_RUNS names the folder of all files. It runs on a
CPU as well, slowly.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import pickle
import subprocess
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.envs.registry import world
from amc_agents.files import replace_file
from amc_agents.models.tokenizers import ASSISTANT, WordTokenizer
from amc_agents.training.metrics import auc
from reproduce.beyond.filtering import filtered, independent
from reproduce.dose.doses import BOTH, GRID, N, Setting
from reproduce.dose.tune import best, scores_of
from reproduce.larger import from_scratch, value_head
from reproduce.larger.batched import Batched, Start
from reproduce.larger.known import HORIZON, Known
from reproduce.larger.search import Critic, Learned, Planner, Rollouts, Seat, Together, areas_by_step, past
from reproduce.larger.value_head import Outcome, ValueModel

RUNS = Path(os.environ.get("LARGER_RUNS", "runs/larger"))
PAGE = Path("docs/results/larger/README.md")
RAW = PAGE.parent / "raw"
HERE = Path(__file__).parent
ORACLE, LEARNED, EXACT = "oracle", "learned", "rollouts"
FIRST = {"fit": ("train", 720_000), "tune": ("train", 360_000), "test": ("test", 30_000)}
"""Split and number of the first task. No other model or experiment uses these tasks."""
HEATS = (0.5, 0.7, 0.9, 1.1)
FIT_HEAT, FIT_TRIES = 0.7, 8
POOL = 20
"""Tries per task and temperature."""
ROLLOUTS = 64
"""Continuations of a state by the exact critic."""
TUNE_TASKS = 64
RANKED_STEPS = (2, 4, 8)
"""Steps after which AUCs are compared."""
RANKED_TASKS, RANKED_TRIES = 96, 10
COMMANDS = ("policy", "collect", "value", "tune", "play", "rank", "pack")


class Session:
    """A process's models and tasks.

    Args:
        options: of the command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.tokenizer = WordTokenizer.from_folder(RUNS / "policy")
        seed = options.seed * 1000 + options.shard
        self.policy = Batched.load(RUNS / "policy", self.tokenizer.end_id, options.rows, seed)
        self.turn = self.tokenizer.vocabulary[ASSISTANT]
        self._critics: dict[tuple[str, float], Critic] = {}

    def tasks(self, group: str, n_tasks: int) -> list[Known]:
        """Return the part of a group's first tasks that this process plays."""
        split, first = FIRST[group]
        spec = world(BOTH)
        mine = range(self.options.shard, n_tasks, self.options.shards)
        return [Known(task, self.tokenizer) for number in mine for task in spec.tasks(1, split, first + number)]

    def critic(self, name: str, heat: float) -> Critic:
        """Return a critic. Only V^pi depends on the temperature."""
        key = name, heat if name == EXACT else 0.0
        if key not in self._critics:
            if name == ORACLE:
                self._critics[key] = Planner()
            elif name == EXACT:
                self._critics[key] = Rollouts(self.policy, ROLLOUTS, heat)
            else:
                self._critics[key] = Learned(ValueModel.load(RUNS / name, self.turn))
        return self._critics[key]

    async def search(self, together: Together, known: Known, name: str, setting: Setting) -> list[dict[str, Any]]:
        """Run AMC on a task."""
        heat = setting.temperatures[0]
        seat = Seat(together, known, self.critic(name, heat), heat)
        text = (known.task.id, name, setting.name)
        rng = np.random.default_rng([self.options.seed, *(zlib.crc32(each.encode()) for each in text)])
        found = await filtered(seat, N, setting.points, setting.beta, rng)
        returns = [state.return_ for state in found.states]
        return [
            {
                "task": known.task.id, "critic": name, "setting": setting.name,
                "deployable": returns[int(np.argmax(found.values))], "oracle": max(returns),
                "mean": float(np.mean(returns)), "calls": seat.policy_calls,
                "policy_tokens": seat.policy_tokens, "critic_tokens": seat.critic_tokens,
            }
        ]  # fmt: skip

    async def pool(
        self, together: Together, known: Known, heat: float, names: Sequence[str], ranked: Sequence[str]
    ) -> list[dict[str, Any]]:
        """Play independent tries, judge their ends, and measure how each step's values rank them."""
        seat = Seat(together, known, None, heat)
        nodes = (await independent(seat, POOL, 1.0)).states
        for node in nodes:
            seat.charge(node)
        returns, paths = [node.return_ for node in nodes], [past(node) for node in nodes]
        lines = []
        for name in names:
            critic = self.critic(name, heat)
            areas = {}
            if name in ranked:
                some = paths[:RANKED_TRIES]
                asked = [
                    path[step] for path in some for step in range(1, len(path) - 1)
                    if step in RANKED_STEPS
                ]  # fmt: skip
                if asked and 0 < sum(path[-1].return_ > 0 for path in some) < len(some):
                    values = await together.values(critic, asked)
                    areas = areas_by_step(some, dict(zip(asked, values.tolist(), strict=True)), auc)
            ends = await together.values(critic, nodes)
            lines.append(
                {
                    "task": known.task.id, "critic": name, "setting": f"pool_T{heat:g}", "returns": returns,
                    "values": [round(value, 5) for value in ends.tolist()], "auc": areas, "calls": seat.policy_calls,
                    "policy_tokens": seat.policy_tokens, "critic_tokens": seat.critic_tokens,
                }
            )  # fmt: skip
        return lines

    def play(self, path: Path, work: Mapping[Known, Sequence[tuple[str, Any]]], at_once: int) -> None:
        """Play what the file lacks, some tasks at a time, until the time is over.

        Args:
            path: the results.
            work: task -> (critic, setting) or ("pool", (temperature, critics, critics whose AUC is measured)).
            at_once: tasks at a time.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        done = {line["task"] for line in read(path)}
        left = [known for known in work if known.task.id not in done]
        for first in range(0, len(left), at_once):
            if time.time() > self.options.until:
                print("the time is over", path.name, f"{first} of {len(left)}", flush=True)
                return
            together, searches = Together(self.policy), []
            for known in left[first : first + at_once]:
                for name, setting in work[known]:
                    if name == "pool":
                        searches.append(self.pool(together, known, *setting))
                    else:
                        searches.append(self.search(together, known, name, setting))
            lines = [line for some in asyncio.run(together.run(searches)) for line in some]
            with path.open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(line) + "\n" for line in lines))
            print(path.name, first, self.policy.n_sampled, f"{time.time() % 10000:.0f}", flush=True)


def read(path: Path) -> list[dict[str, Any]]:
    """Read results."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def shards(group: str) -> list[dict[str, Any]]:
    """Read the results of all processes."""
    return [line for path in sorted(RUNS.glob(f"{group}-*.jsonl")) for line in read(path)]


def collect(options: argparse.Namespace) -> None:
    """Play the policy's runs on training tasks for the value models."""
    session = Session(options)
    tasks = session.tasks("fit", options.tasks)
    found: list[Outcome] = []
    for first in range(0, len(tasks), 256):
        if time.time() > options.until:
            break
        some = tasks[first : first + 256]
        starts = [Start(known, 0, known.opening, 0) for known in some]
        played = session.policy.play_on(starts, FIT_TRIES, FIT_HEAT, HORIZON)
        for number, (dialogue, return_) in enumerate(played):
            task = (first + number // FIT_TRIES) * options.shards + options.shard
            found.append(Outcome(task, dialogue, return_ > 0))
        print("collect", options.shard, len(found), np.mean([each.success for each in found]), flush=True)
    (RUNS / f"fit-{options.shard}.pickle").write_bytes(pickle.dumps(found))


def train_value(options: argparse.Namespace) -> None:
    """Train the value model."""
    runs: list[Outcome] = []
    for path in sorted(RUNS.glob("fit-*.pickle")):
        runs += pickle.loads(path.read_bytes())
    runs.sort(key=lambda run: run.task)
    tokenizer = WordTokenizer.from_folder(RUNS / "policy")
    turn = tokenizer.vocabulary[ASSISTANT]
    value_head.train(RUNS / "policy", RUNS / LEARNED, runs, turn, options.seed, batch=options.batch)


def tune(options: argparse.Namespace) -> None:
    """Play the grids of some critics on training tasks."""
    session = Session(options)
    for critic in options.critics:
        pools = [("pool", (heat, (critic,), ())) for heat in HEATS]
        tasks = session.tasks("tune", options.tasks or TUNE_TASKS)
        work = {task: [*((critic, setting) for setting in GRID), *pools] for task in tasks}
        session.play(RUNS / f"tune-{critic}-{options.shard}.jsonl", work, options.at_once)


def chosen(critic: str) -> tuple[Setting, float]:
    """Return a critic's setting and its temperature of Best-of-N. V^pi has the oracle's, resampled every third step."""
    if critic == EXACT:
        of_oracle, best_of = chosen(ORACLE)
        return replace(of_oracle, every=3), best_of
    of_name = {setting.name: setting for setting in GRID}
    lines = shards(f"tune-{critic}")
    scores, tasks = scores_of(lines, "deployable"), sorted({line["task"] for line in lines})
    amc = [name for _, name in scores if name in of_name]
    setting = of_name[best(scores, critic, amc, tasks, 1)[0]]
    heat = best(scores, critic, [f"pool_T{heat:g}" for heat in HEATS], tasks, 1)[0]
    return setting, float(heat.removeprefix("pool_T"))


def play(options: argparse.Namespace) -> None:
    """Play the chosen settings of some critics on test tasks."""
    session = Session(options)
    for critic in options.critics:
        setting, heat = chosen(critic)
        print(critic, setting.name, heat, flush=True)
        if critic == EXACT:
            tasks, pools = session.tasks("test", options.exact), []
        else:
            tasks, pools = session.tasks("test", options.tasks), [("pool", (heat, (critic,), ()))]
        work = {task: [(critic, setting), *pools] for task in tasks}
        at_once = options.exact_at_once if critic == EXACT else options.at_once
        session.play(RUNS / f"test-{critic}-{options.shard}.jsonl", work, at_once)


def rank(options: argparse.Namespace) -> None:
    """Measure the AUC of all critics on the same tries of test tasks."""
    session = Session(options)
    critics = (ORACLE, LEARNED, EXACT)
    work = {task: [("pool", (FIT_HEAT, critics, critics))] for task in session.tasks("test", RANKED_TASKS)}
    session.play(RUNS / f"ranked-{options.shard}.jsonl", work, options.exact_at_once)


def pack(options: argparse.Namespace) -> None:
    """Write the results that there are, and the chosen settings, to the project."""
    RAW.mkdir(parents=True, exist_ok=True)
    for group in ("tune", "test", "ranked"):
        if lines := shards(group):
            text = "".join(sorted(json.dumps(line) + "\n" for line in lines))
            replace_file(packed(RUNS.name, group), gzip.compress(text.encode(), mtime=0))
    for model in ("policy", LEARNED):
        replace_file(RAW / f"{RUNS.name}-{model}.json", (RUNS / model / "training.json").read_bytes())
    if shards("test"):
        file = HERE / "chosen.json"
        table = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        table[RUNS.name] = {}
        for critic in (ORACLE, LEARNED, EXACT):
            setting, heat = chosen(critic)
            table[RUNS.name][critic] = {"setting": setting.name, "best_of": heat}
        replace_file(file, (json.dumps(table, indent=1, sort_keys=True) + "\n").encode())


def packed(policy: str, group: str) -> Path:
    """The file of a group's results."""
    return RAW / f"{policy}-{group}.jsonl.gz"


def side_by_side(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Run a command as several processes, each with a part of the tasks."""
    commands = [
        [sys.executable, __file__, *arguments, "--shard", str(shard), "--shards", str(options.processes)]
        for shard in range(options.processes)
    ]
    processes = [subprocess.Popen([*command, "--processes", "1"]) for command in commands]
    return max(process.wait() for process in processes)


def main() -> None:
    """Execute a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("critics", nargs="*", help="of tune and play")
    parser.add_argument("--seconds", type=float, default=110, help="of the policy's training")
    parser.add_argument("--workers", type=int, default=15, help="processes that play the expert")
    parser.add_argument("--tasks", type=int, default=0)
    parser.add_argument("--exact", type=int, default=0, help="tasks that V^pi plays")
    parser.add_argument("--exact-at-once", type=int, default=4, help="tasks of V^pi at a time")
    parser.add_argument("--rows", type=int, default=4096, help="dialogues of a batch")
    parser.add_argument("--batch", type=int, default=128, help="of the value model's training")
    parser.add_argument("--at-once", type=int, default=4, help="tasks of the other critics at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--shard", type=int, default=0)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--until", type=float, default=float("inf"), help="seconds since 1970 at which to stop")
    options = parser.parse_args()
    RUNS.mkdir(parents=True, exist_ok=True)
    if options.processes > 1:
        sys.exit(side_by_side(options, sys.argv[1:]))
    commands = {"collect": collect, "value": train_value, "tune": tune, "play": play, "rank": rank, "pack": pack}
    if options.command == "policy":
        from_scratch.train(RUNS / "policy", options.seconds, options.workers, options.seed)
    else:
        commands[options.command](options)


if __name__ == "__main__":
    main()
