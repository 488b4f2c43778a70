"""Trajectories from which a critic learns quickly, and a tiny model to train."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

import amc_agents.models.embedded
from amc_agents.types import Step, Task, Trajectory


def decided_by_the_first_answer(n_tasks: int, per_task: int, seed: int = 0) -> list[Trajectory]:
    """Trajectories with a return of 1 if the first answer is "Got ...": easy to learn from s_1 on."""
    rng = np.random.default_rng(seed)
    items = ["clay", "silk", "flint", "bone", "coal", "kelp"]
    trajectories = []
    for number in range(n_tasks):
        goal, raw = rng.choice(["oak gate", "iron rod", "jade lamp"]), str(rng.choice(items))
        task = Task(f"toy/{number}", f"Crafting commands:\ncraft 1 {goal} using 2 {raw}\n\nGoal: craft {goal}.")
        for _ in range(per_task):
            good, length = bool(rng.random() < 0.5), int(rng.integers(2, 6))
            answers = [f"Got 1 {raw}" if good else f"Could not find {raw}"]
            answers += [f"Got {rng.integers(1, 4)} {rng.choice(items)}" for _ in range(length - 1)]
            steps = [Step(f"get 1 {rng.choice(items)}", answer, f"{goal} using 2 {raw}") for answer in answers]
            steps[-1] = replace(steps[-1], reward=float(good))
            trajectories.append(Trajectory(task, tuple(steps), done=True))
    return trajectories


def tiny_llama(folder: Path) -> Path:
    """Write a tiny Llama of random weights with the shipped tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shipped = Path(amc_agents.models.embedded.__path__[0]) / "crafting"
    for path in shipped.iterdir():
        if path.is_file() and path.suffix != ".safetensors" and path.name != "config.json":
            shutil.copy(path, folder)
    config = LlamaConfig(
        vocab_size=279, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=512, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=4, pad_token_id=1, initializer_range=0.15,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
