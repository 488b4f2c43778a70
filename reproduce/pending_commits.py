"""Does a value model tell a good pending commit call from a bad one? With and without training on pending states.

    python reproduce/pending_commits.py

A scripted agent asks which item a customer returns, refunds the right item or another (a fair coin), and reads whether
the customer is content. Of the same collected trajectories, a small value model is trained with and without the states
in which the refund is pending. Both are scored on held-out tasks, and choose among the pending refunds of real `amc`
runs. Writes docs/results/pending_commits.json (some two minutes per seed).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from transformers import LlamaConfig, LlamaForCausalLM

from amc_agents import amc, current_environment
from amc_agents.bench.statistics import paired
from amc_agents.critics.spec import parse_critic
from amc_agents.files import replace_file
from amc_agents.messages import pending_states
from amc_agents.models.seeding import particle_rng
from amc_agents.smc import Never
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.training.collecting import collect
from amc_agents.training.dataset import LoggedTrajectory, read_records, write_shard
from amc_agents.training.metrics import auc
from amc_agents.training.value.train_value import EMBEDDED, train_value
from amc_agents.types import Task, TimeStep, Trajectory
from reproduce.word_tokenizer import word_tokenizer

OUT = Path("docs/results/pending_commits.json")
ITEMS = ("lamp", "chair", "desk")
N_TASKS, PER_TASK, N_HELD_OUT, N_RUNS, N = 120, 6, 40, 20, 4
TRAINING = replace(EMBEDDED, epochs=12, lora_rank=16, packing=False)


class Shop:
    """A customer returns an item, and is content with a refund of that item only."""

    item = ""

    async def reset(self, task: Task) -> TimeStep:
        """Begin with the item of the task."""
        self.item = task.payload
        return TimeStep.restart(task.instruction)

    async def step(self, action: str) -> TimeStep:
        """Answer the question for the item, or a refund."""
        if action == "ask":
            return TimeStep.transition(f"The customer returns the {self.item} .")
        right = action == self.item
        return TimeStep.termination("The customer is content ." if right else "The customer complains .", float(right))

    async def fork(self, seed: int) -> Shop:
        """Copy the item."""
        copy = Shop()
        copy.item = self.item
        return copy

    async def close(self) -> None:
        """Release nothing."""


@tool
async def ask() -> str:
    """Ask which item the customer returns."""
    return (await current_environment().step("ask")).observation


@tool
async def refund(item: str) -> str:
    """Refund an item."""
    return (await current_environment().step(item)).observation


def respond(messages: Sequence[BaseMessage]) -> str | AIMessage | Exception:
    """Ask, refund the item or another, and end."""
    answers = [message.text for message in messages if isinstance(message, ToolMessage)]
    if len(answers) == 2:
        return "The refund is paid ."
    if not answers:
        return AIMessage("", tool_calls=[{"name": "ask", "args": {}, "id": "ask"}])
    rng = particle_rng() or np.random.default_rng()
    right = answers[0].split()[-2]
    others = [item for item in ITEMS if item != right]
    item = right if rng.random() < 0.5 else str(rng.choice(others))
    return AIMessage("", tool_calls=[{"name": "refund", "args": {"item": item}, "id": "refund"}])


TOOLS: list[BaseTool] = [ask, refund]
AGENT = create_agent(ScriptedChatModel(respond=respond), TOOLS)


def tasks(split: str, number: int) -> list[Task]:
    """Make tasks, which differ in the item."""
    items = np.random.default_rng(len(split)).choice(ITEMS, number)
    return [Task(f"{split}/{at}", "A customer writes .", str(item)) for at, item in enumerate(items)]


def base_model(folder: Path, data: list[LoggedTrajectory], seed: int) -> Path:
    """Write a small model of random weights, whose tokenizer knows the words of the data."""
    texts = [text for each in data for text in _texts(each.trajectory)]
    words = sorted({piece for text in texts for piece in re.findall(PIECES, text)})
    tokenizer = word_tokenizer(words, pattern=PIECES)
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=None, eos_token_id=4, pad_token_id=1,
        initializer_range=0.15,
    )  # fmt: skip
    torch.manual_seed(seed)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def _texts(trajectory: Trajectory) -> list[str]:
    parts = [part for step in trajectory.steps for part in (step.action, step.observation)]
    return [trajectory.task.instruction, "Action: ", *parts]


PIECES = r"\w+|\s|[^\w\s]"


def auc_of(critic: Any, held_out: list[LoggedTrajectory]) -> float:
    """Return the AUC of right against wrong refunds on held-out states in which the refund is pending."""
    states = [state for each in held_out for state in pending_states(each.trajectory, ["refund"])]
    values = asyncio.run(critic.values(states))
    return float(auc(values, np.array([each.trajectory.return_ for each in held_out])) or np.nan)


def right_refunds(critic: Any, seed: int) -> float:
    """Return the share of runs in which the refund that was made is the right one."""
    right = []
    for number, task in enumerate(tasks("runs", N_RUNS)):

        def shop(state: Any, task: Task = task) -> tuple[Shop, Task]:
            return Shop(), task

        graph = amc(
            AGENT, critic, tools={"ask": "world", "refund": "commit"}, n_particles=N,
            environment=shop, beta=0.1, resample=Never(), seed=1000 * seed + number,
        )  # fmt: skip
        with graph.run({"messages": [("user", task.instruction)]}) as run:
            right.append(run.best.return_)
    return float(np.mean(right))


def one_seed(seed: int, folder: Path) -> dict[str, dict[str, float]]:
    """Collect, train and measure with one seed."""
    for split, number in (("train", N_TASKS), ("test", N_HELD_OUT)):
        collect(
            AGENT, tasks(split, number), Shop, PER_TASK, folder / split, seed=seed, tools={"ask": "world"},
            commit_tools=["refund"],
        )  # fmt: skip
    training, held_out = read_records(folder / "train"), read_records(folder / "test")
    write_shard(folder / "unnamed", [replace(each, settings="{}") for each in training])
    base = base_model(folder / "base", training, seed)
    measured = {}
    for name, data in (("with pending states", "train"), ("without", "unnamed")):
        train_value(base, folder / data, folder / f"value-{data}", replace(TRAINING, seed=seed))
        critic = parse_critic(f"hf:{folder / f'value-{data}'}")
        measured[name] = {"auc": auc_of(critic, held_out), "right refunds": right_refunds(critic, seed)}
    return measured


def summary(rows: dict[str, dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Return the measurements, and their means and differences with 95% intervals over seeds (Student's t)."""
    ways, kinds = ("with pending states", "without"), ("auc", "right refunds")
    named = {(way, kind): {(seed, 0): row[way][kind] for seed, row in rows.items()} for way in ways for kind in kinds}
    if len(rows) < 2:  # No interval.
        return {"seeds": rows}
    means = {f"{way}: {kind}": paired(values, dict.fromkeys(values, 0.0)) for (way, kind), values in named.items()}
    changes = {f"difference: {kind}": paired(named[ways[0], kind], named[ways[1], kind]) for kind in kinds}
    settings = {
        "items": len(ITEMS), "tasks": N_TASKS, "trajectories per task": PER_TASK, "held-out tasks": N_HELD_OUT,
        "runs": N_RUNS, "particles": N, "epochs": TRAINING.epochs,
    }  # fmt: skip
    measured = {
        name: {"mean": each.difference, "low": each.low, "high": each.high}
        for name, each in {**means, **changes}.items()
    }
    return {"settings": settings, "measured": measured, "seeds": rows}


def main() -> None:
    """Run the seeds that the file lacks; a seed is lost if it is interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    torch.set_num_threads(1)
    rows = json.loads(OUT.read_text())["seeds"] if OUT.exists() else {}
    for seed in parser.parse_args().seeds:
        if str(seed) not in rows:
            with tempfile.TemporaryDirectory() as folder:
                rows[str(seed)] = one_seed(seed, Path(folder))
            print(json.dumps(rows[str(seed)]), flush=True)
        replace_file(OUT, json.dumps(summary(rows), indent=1) + "\n")


if __name__ == "__main__":
    main()
