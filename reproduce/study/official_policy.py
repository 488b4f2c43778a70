"""Goes on training a policy of the study on the official TextCraft's training split, under ever new names.

    AMC_TEXTCRAFT=FOLDER python reproduce/study/official_policy.py SEED [--steps 4000]

The generated books have few recipes and small amounts: on official tasks the policy as it is succeeds in most of those
of depth 1 and in few of depth 2. Half of the dialogues are of the published training split, half of generated books.
Written to reproduce/study/models/SEED-official.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from functools import cache
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "crafting"))

from amc_agents.envs.crafting import official_tasks
from amc_agents.envs.crafting.renamed import renamed
from amc_agents.envs.found import TEXTCRAFT_VARIABLE
from amc_agents.models.embedded import model_folder
from amc_agents.types import Task
from settings import MODELS, OFFICIAL, policy_of
from train_policy import Dialogues, Stage, train_stage

STAGE = Stage("H", 4000, 2e-3, (3, 14), (0.0, 0.02, 0.05, 0.1, 0.2, 0.3), whole_way=True)
LONGEST = 20
"""Tasks whose planner's way has more steps cannot be won within the horizon."""


@cache
def training_tasks() -> list[Task]:
    """The published training split, as far as it can be won."""
    found = official_tasks(os.environ[TEXTCRAFT_VARIABLE], "train")
    return [one for one in found if one.payload.optimal_steps <= LONGEST]


class Mixed(Dialogues):
    """Official tasks at even numbers, generated ones at odd."""

    def task(self, number: int, span: tuple[int, int]) -> Task:
        """The task of a dialogue."""
        if number % 2:
            return super().task(number, span)
        return renamed(training_tasks()[number // 2 % len(training_tasks())], seed=number)


def main() -> None:
    """Train one stage from the seed's policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("--steps", type=int, default=STAGE.steps)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    folder, out = model_folder(policy_of(options.seed)), MODELS / f"{options.seed}-{OFFICIAL}"
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    train_stage(model, Stage(**{**STAGE.__dict__, "steps": options.steps}), options.seed, Mixed)
    model.half().save_pretrained(out)
    for file in folder.iterdir():
        if file.is_file() and not (out / file.name).exists():
            shutil.copy(file, out)


if __name__ == "__main__":
    main()
