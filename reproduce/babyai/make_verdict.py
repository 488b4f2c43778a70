"""Make the BabyAI verdict model: mixed play, the expert's labels of every action, then training of full matrices.

    python reproduce/babyai/make_verdict.py DATA [--out FOLDER]

The states resemble those of a policy whose steps a critic corrects: the policy plays each episode at a random
temperature, and sometimes a useless step is replaced by a useful step, or any step by a random step. Every action of
every state gets the expert's label. The adapter (float16) and its JSON go to FOLDER (default: `verdict/` next to the
policy's weights). DATA keeps trajectories and labels; existing files are not made again. The tasks are of the split
"train", from number 300,000 on; no comparison uses them.
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
from amc_agents.training.verdict.labelling import Judged, Label, Option, read_judged, write_judged
from amc_agents.training.verdict.train_verdict import EMBEDDED, VerdictTrainingProgress, train_verdict
from amc_agents.types import Step, Task, Trajectory

WORLDS = {"go-to": GO_TO, "pick-up": PICK_UP}
PARTS = {300_000: 0, 330_000: 1}
"""First task of each part -> seed of the part."""
TASKS = 1500
"""Tasks per part and world."""
AT_ONCE = 100
"""Concurrent tasks."""
TEMPERATURES = (0.0, 0.4, 0.7, 1.0)
CORRECTED = (0.0, 0.0, 0.2, 0.4, 0.7)
"""Probabilities of replacing a useless step by a useful step, drawn per episode."""
RANDOM = (0.0, 0.0, 0.1, 0.2)
"""Probabilities of replacing a step by a random step, drawn per episode."""
USELESS = ("drop", "toggle")
"""Actions that are never useful in these worlds; candidates in a tenth of the states."""
LONGEST = {"thought": 200, "action": 40}
"""Maximum characters; a longer text is a turn that the policy did not end."""
SETTINGS = replace(
    EMBEDDED,
    optimizer="muon",
    learning_rate=3e-3,
    weight_decay=0.0,
    lora_rank=None,
    epochs=2,
    batch_size=24,
    # Nearly all of the policy's thoughts about a visible object name a wrong place, and with few rounds the model
    # quickly learns which round is the newest.
    prompt_format=DIALOGUE_ACTIONS,
    max_tokens=160,
    disagreement=1.0,
    observed=0.0,
    observation_weight=0.0,
    validation_share=0.04,
    # GOOD and BAD are in the vocabulary, but the policy never saw them: such words share the same embedding.
    words=("You carry a", "You see a", "Thought:"),
)
LABELS = ExpertLabels()


async def play(models: list[EmbeddedChatModel], spec: WorldSpec, task: Task, seed: int) -> Judged:
    """Play an episode and label all candidate actions."""
    rng = np.random.default_rng([seed, task.payload.seed, 7])
    model = models[rng.integers(len(models))]
    corrected, random = CORRECTED[rng.integers(len(CORRECTED))], RANDOM[rng.integers(len(RANDOM))]
    world = spec.make()
    answer = await world.reset(task)
    messages: list[BaseMessage] = [HumanMessage(answer.observation)]
    steps: list[Step] = []
    labels: list[Label] = []
    options: list[tuple[Option, ...]] = []
    with use_rng(np.random.default_rng([seed, task.payload.seed])):
        while not answer.done:
            reply = await model.ainvoke(messages)
            thought, proposed = turn_of(reply)
            label_of = judged(Trajectory(task, tuple(steps)), proposed)
            candidates = [name for name in ACTIONS if name not in USELESS or rng.random() < 0.1]
            action = _replaced(proposed, label_of, rng, corrected, random)
            candidates += [name for name in dict.fromkeys((action, proposed)) if name not in candidates]
            options.append(
                tuple(Option(Step(name, thought=thought), label_of[name], 1, name == proposed) for name in candidates)
            )
            labels.append(label_of[action])
            answer = await world.step(action)
            step = Step(action, answer.observation, thought, answer.reward)
            steps.append(step)
            messages += [AIMessage(turn(step)), HumanMessage(answer.observation)]
    return Judged(Trajectory(task, tuple(steps), True), tuple(labels), tuple(options))


def judged(state: Trajectory, proposed: str) -> dict[str, Label]:
    """Label all actions in a state, and the policy's proposal."""
    return {name: LABELS(state.extended(Step(name)))[-1] for name in dict.fromkeys((*ACTIONS, proposed))}


def _replaced(
    proposed: str, label_of: Mapping[str, Label], rng: np.random.Generator, corrected: float, random: float
) -> str:
    useful = [name for name in ACTIONS if label_of[name] == "GOOD"]
    chance = rng.random()
    if chance < corrected and useful and label_of[proposed] != "GOOD":
        return useful[rng.integers(len(useful))]
    return list(ACTIONS)[rng.integers(3)] if chance > 1 - random else proposed


async def played(data: Path, name: str, first: int) -> list[Judged]:
    """Return a part of the data, without turns that did not end; play it if DATA lacks it."""
    kept = data / f"{name}-{first}" / "judged.jsonl"
    if not kept.exists():
        spec = WORLDS[name]
        models = [EmbeddedChatModel(model=str(MODEL), temperature=temperature) for temperature in TEMPERATURES]
        tasks = list(spec.tasks(TASKS, "train", first))
        plays: list[Judged] = []
        for at in range(0, len(tasks), AT_ONCE):
            batch = tasks[at : at + AT_ONCE]
            plays += await asyncio.gather(*(play(models, spec, task, PARTS[first]) for task in batch))
            print(f"{name}: {len(plays)} of {len(tasks)} played", flush=True)
        write_judged(kept, plays)
    return [
        replace(each, options=tuple(tuple(option for option in state if _ended(option.step)) for state in each.options))
        for each in read_judged(kept)
        if all(map(_ended, each.trajectory.steps))
    ]


def _ended(step: Step) -> bool:
    return all(len(getattr(step, part)) < longest for part, longest in LONGEST.items())


def ship(trained: Path, out: Path) -> None:
    """Copy the adapter and the checkpoint's JSON of a trained folder."""
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(trained / "adapter" / "adapter_model.safetensors", out)
    shutil.copy(trained / FILE, out)
    # The adapter's config names its base model's folder: here, the parent folder.
    config = json.loads((trained / "adapter" / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = ".."
    (out / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")


def main() -> None:
    """Play, train, and write the shipped files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=MODEL / "verdict")
    options = parser.parse_args()
    torch.set_num_threads(1)
    judged = [play for name in WORLDS for first in PARTS for play in asyncio.run(played(options.data, name, first))]

    def show(progress: VerdictTrainingProgress) -> None:
        if progress.step % 50 == 0:
            print(progress, flush=True)

    trained = options.data / "model"
    if not trained.exists():
        checkpoint = train_verdict(MODEL, judged, trained, SETTINGS, progress=show)
        print(json.dumps({key: value for key, value in checkpoint.metrics.items() if key != "epochs"}, indent=1))
    ship(trained, options.out)


if __name__ == "__main__":
    main()
