"""Makes the BabyAI verdict model in two rounds: play, candidates of every state, the expert's labels, the adapter.

    python reproduce/babyai/make_verdict.py DATA [--out FOLDER]

First the policy plays alone, at several temperatures, and a first critic is trained. Then LAC plays with that critic:
the second critic has seen the states that a critic leads to. The adapter (float16) and its JSON go to FOLDER, which is
`verdict/` beside the policy's weights if not given. DATA keeps all play, labels and both models: what is there already
is not made again. The tasks are of the split "train", from 100,000 to 140,000.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from amc_agents_minigrid import GO_TO, MODEL, PICK_UP, ExpertLabels

from amc_agents import actor_critic_model
from amc_agents.critics.verdict_checkpoint import FILE
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.nodes.text_agent import text_agent
from amc_agents.training.collect import collect
from amc_agents.training.dataset import read_trajectories
from amc_agents.training.verdict import EMBEDDED, Progress, VerdictTrainingSettings, train_verdict
from amc_agents.training.verdict_data import Judged, labelled, read_judged, sample_options, write_judged

WORLDS = {"go-to": GO_TO, "pick-up": PICK_UP}
CANDIDATES = 8
"""Samples of each state, at the temperature of the play; the greedy turn is one more candidate."""


class Play(NamedTuple):
    """One trajectory of each of some tasks."""

    tasks: int
    first: int
    temperature: float
    with_critic: bool = False

    @property
    def seed(self) -> int:
        """Of the play, and of the candidates' samples."""
        return self.first + (0 if self.with_critic else round(100 * self.temperature))


ALONE = (Play(300, 100_000, 0.5), Play(250, 110_000, 1.0), Play(150, 120_000, 0.0))
GUIDED = Play(300, 130_000, 1.0, with_critic=True)
SETTINGS = replace(
    EMBEDDED,
    epochs=2,
    batch_size=2,
    lora_rank=32,
    lora_alpha=64,
    # Its vocabulary has GOOD and BAD, which it never saw: all words of that kind share one embedding.
    words=("You carry a", "You see a", "Thought:"),
)
FIRST = replace(SETTINGS, lora_rank=16, lora_alpha=32)
"""The critic of the first round has to be good enough to lead to other states, and is trained on ALONE[0]."""


def judged_play(data: Path, name: str, play: Play, critic: Path | None) -> list[Judged]:
    """Plays, samples candidates and labels them, as far as DATA lacks it."""
    kept = data / f"{name}-{play.first}" / "judged.jsonl"
    if not kept.exists():
        found = WORLDS[name]
        model = EmbeddedChatModel(model=str(MODEL), temperature=play.temperature)
        agent = text_agent(
            actor_critic_model(model, f"verdict:embedded:{critic}", k=5, alpha=2.0, greedy=True) if critic else model
        )
        collect(
            agent, list(found.tasks(play.tasks, "train", play.first)), found.make, 1, kept.parent / "played",
            horizon=found.horizon, policy="embedded:babyai", seed=play.seed,
            settings={"temperature": play.temperature, "with_critic": play.with_critic},
        )  # fmt: skip
        played = read_trajectories(kept.parent / "played")
        candidates = asyncio.run(sample_options(played, model, k=CANDIDATES, seed=play.seed))
        write_judged(kept, labelled(played, ExpertLabels(), candidates))
    judged = read_judged(kept)
    solved = sum(one.trajectory.return_ > 0 for one in judged)
    print(f"{name}, {play}: {solved} of {len(judged)} solved", flush=True)
    return judged


def trained(judged: Callable[[], list[Judged]], out: Path, settings: VerdictTrainingSettings) -> Path:
    """The folder of a critic, trained where DATA lacks it: a policy's folder with the adapter in `verdict/`."""

    def show(progress: Progress) -> None:
        if progress.step % 100 == 0:
            print(progress, flush=True)

    if not out.exists():
        checkpoint = train_verdict(MODEL, judged(), out.with_name(f"{out.name}-whole"), settings, progress=show)
        print(json.dumps({key: value for key, value in checkpoint.metrics.items() if key != "epochs"}, indent=1))
        whole = out.with_name(f"{out.name}-whole")
        shutil.copytree(MODEL, out, ignore=shutil.ignore_patterns("verdict"))
        ship(whole, out / "verdict")
    return out


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
    """Both rounds, then what is shipped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=MODEL / "verdict")
    options = parser.parse_args()
    torch.set_num_threads(1)

    def alone(play: Play) -> list[Judged]:
        return [one for name in WORLDS for one in judged_play(options.data, name, play, None)]

    first = trained(lambda: alone(ALONE[0]), options.data / "first", FIRST)
    guided = [one for name in WORLDS for one in judged_play(options.data, name, GUIDED, first)]
    second = trained(
        lambda: [*(one for play in ALONE for one in alone(play)), *guided], options.data / "second", SETTINGS
    )
    shutil.copytree(second / "verdict", options.out, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
