"""Makes the BabyAI verdict model: mixed play, the expert's labels of every action, then all matrices of the policy.

    python reproduce/babyai/make_verdict.py DATA [--out FOLDER]

The states to judge are those that a policy meets when a critic corrects some of its steps: the policy plays at a
temperature of its own in each episode, and now and then a useless step is replaced by a useful one, or any step by
another. Every action of every state gets the expert's label. The adapter (float16) and its JSON go to FOLDER, which is
`verdict/` beside the policy's weights if not given. DATA keeps play and labels: what is there already is not made
again. The tasks are of the split "train", from 300,000 on: no comparison uses them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from amc_agents_minigrid import ACTIONS, GO_TO, MODEL, PICK_UP, ExpertLabels
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from amc_agents.critics.render import turn
from amc_agents.critics.verdict.checkpoint import DIALOGUE_ACTIONS, FILE
from amc_agents.envs.registry import WorldSpec
from amc_agents.messages import turn_of
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.models.seeding import use_rng
from amc_agents.training.verdict.data import Judged, Option, read_judged, write_judged
from amc_agents.training.verdict.labels import Label
from amc_agents.training.verdict.training import EMBEDDED, VerdictTrainingProgress, train_verdict
from amc_agents.types import Step, Task, Trajectory

WORLDS = {"go-to": GO_TO, "pick-up": PICK_UP}
PARTS = {300_000: 0, 330_000: 1}
"""First task of each part -> its seed."""
TASKS = 1500
"""Of each part and world."""
AT_ONCE = 100
"""Tasks that are played together."""
TEMPERATURES = (0.0, 0.4, 0.7, 1.0)
CORRECTED = (0.0, 0.0, 0.2, 0.4, 0.7)
"""Chance that a useless step is replaced by a useful one; one is drawn for each episode."""
ASTRAY = (0.0, 0.0, 0.1, 0.2)
"""Chance that a step is replaced by any; likewise."""
SELDOM = ("drop", "toggle")
"""Never of use in these worlds: judged in one state of ten."""
LONGEST = {"thought": 200, "action": 40}
"""Characters of a turn beyond which the policy has run on without an end."""
SETTINGS = replace(
    EMBEDDED,
    optimizer="muon",
    learning_rate=3e-3,
    weight_decay=0.0,
    lora_rank=None,
    epochs=2,
    batch_size=24,
    # Of the policy's thoughts about a thing in sight nearly all name a wrong place; and among few rounds the newest is
    # soon told from older ones.
    prompt_format=DIALOGUE_ACTIONS,
    max_tokens=160,
    disagreement=1.0,
    observed=0.0,
    observation_weight=0.0,
    validation_share=0.04,
    # Its vocabulary has GOOD and BAD, which it never saw: all words of that kind share one embedding.
    words=("You carry a", "You see a", "Thought:"),
)
LABELS = ExpertLabels()


async def play(models: list[EmbeddedChatModel], found: WorldSpec, task: Task, seed: int) -> Judged:
    """One episode, with labels of all that could have been done."""
    drawn = np.random.default_rng([seed, task.payload.seed, 7])
    model = models[drawn.integers(len(models))]
    corrected, astray = CORRECTED[drawn.integers(len(CORRECTED))], ASTRAY[drawn.integers(len(ASTRAY))]
    world = found.make()
    answer = await world.reset(task)
    messages: list[BaseMessage] = [HumanMessage(answer.observation)]
    steps: list[Step] = []
    labels: list[Label] = []
    options: list[tuple[Option, ...]] = []
    with use_rng(np.random.default_rng([seed, task.payload.seed])):
        while not answer.done:
            reply = await model.ainvoke(messages)
            thought, own = turn_of(reply)
            told = judged(Trajectory(task, tuple(steps)), own)
            wanted = [name for name in ACTIONS if name not in SELDOM or drawn.random() < 0.1]
            action = _replaced(own, told, drawn, corrected, astray)
            wanted += [one for one in dict.fromkeys((action, own)) if one not in wanted]
            options.append(tuple(Option(Step(one, thought=thought), told[one], 1, one == own) for one in wanted))
            labels.append(told[action])
            answer = await world.step(action)
            step = Step(action, answer.observation, thought, answer.reward)
            steps.append(step)
            messages += [AIMessage(turn(step)), HumanMessage(answer.observation)]
    return Judged(Trajectory(task, tuple(steps), True), tuple(labels), tuple(options))


def judged(state: Trajectory, own: str) -> dict[str, Label]:
    """The labels of all actions in a state, and of what the policy wrote."""
    return {name: LABELS(state.extended(Step(name)))[-1] for name in dict.fromkeys((*ACTIONS, own))}


def _replaced(own: str, told: Mapping[str, Label], drawn: np.random.Generator, corrected: float, astray: float) -> str:
    useful = [name for name in ACTIONS if told[name] == "GOOD"]
    chance = drawn.random()
    if chance < corrected and useful and told[own] != "GOOD":
        return useful[drawn.integers(len(useful))]
    return list(ACTIONS)[drawn.integers(3)] if chance > 1 - astray else own


async def played(data: Path, name: str, first: int) -> list[Judged]:
    """A part of the data, made where DATA lacks it; without what ran on."""
    kept = data / f"{name}-{first}" / "judged.jsonl"
    if not kept.exists():
        found = WORLDS[name]
        models = [EmbeddedChatModel(model=str(MODEL), temperature=temperature) for temperature in TEMPERATURES]
        tasks = list(found.tasks(TASKS, "train", first))
        made: list[Judged] = []
        for at in range(0, len(tasks), AT_ONCE):
            these = tasks[at : at + AT_ONCE]
            made += await asyncio.gather(*(play(models, found, task, PARTS[first]) for task in these))
            print(f"{name}: {len(made)} of {len(tasks)} played", flush=True)
        write_judged(kept, made)
    return [
        replace(one, options=tuple(tuple(option for option in state if _ended(option.step)) for state in one.options))
        for one in read_judged(kept)
        if all(map(_ended, one.trajectory.steps))
    ]


def _ended(step: Step) -> bool:
    return all(len(getattr(step, part)) < longest for part, longest in LONGEST.items())


def ship(made: Path, out: Path) -> None:
    """Copies the adapter and the checkpoint's JSON of a trained folder."""
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(made / "adapter" / "adapter_model.safetensors", out)
    shutil.copy(made / FILE, out)
    # The adapter's own description names the folder that it was trained in: here it lies inside that folder.
    described = json.loads((made / "adapter" / "adapter_config.json").read_text())
    described["base_model_name_or_path"] = ".."
    (out / "adapter_config.json").write_text(json.dumps(described, indent=1, sort_keys=True) + "\n")


def main() -> None:
    """Plays, trains, and writes what is shipped of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=MODEL / "verdict")
    options = parser.parse_args()
    torch.set_num_threads(1)
    judged = [one for name in WORLDS for first in PARTS for one in asyncio.run(played(options.data, name, first))]

    def show(progress: VerdictTrainingProgress) -> None:
        if progress.step % 50 == 0:
            print(progress, flush=True)

    made = options.data / "model"
    if not made.exists():
        checkpoint = train_verdict(MODEL, judged, made, SETTINGS, progress=show)
        print(json.dumps({key: value for key, value in checkpoint.metrics.items() if key != "epochs"}, indent=1))
    ship(made, options.out)


if __name__ == "__main__":
    main()
