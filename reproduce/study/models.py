"""Trains one seed's models: the policy, and for each regime a value model and its control on shuffled targets.

    python reproduce/study/models.py SEED --data DATA [--tasks 3000] [--only policy hot tuned official]

About 35 minutes on one core for a policy, 25 for a regime, 25 for the official recipes (AMC_TEXTCRAFT names their
folder). The policy of seed 0 is the shipped one. What is done is not done again, and what was interrupted goes on where
it was. Written to reproduce/study/models/SEED.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from amc_agents.models.embedded import model_folder
from settings import MODELS, OFFICIAL, RENAMED, TEMPERATURES, policy_of

TRAJECTORIES = 2
"""Of each task: many tasks teach more than many tries at one."""
OPTIMAL_STEPS = ("8", "16")
OFFICIAL_PLAY = ("--world", RENAMED, "--tasks", "374", "--trajectories", "8")
"""All of the published training split."""
POLICY = "policy"
ALL = [POLICY, *TEMPERATURES]


def call(script: str, *arguments: str) -> None:
    """Another script of this folder's neighbour."""
    subprocess.run([sys.executable, f"reproduce/crafting/{script}.py", *arguments], check=True)


def policy(seed: int, data: Path) -> None:
    """Trains the policy; its stages stay in `data`."""
    folder, trained = MODELS / str(seed), data / POLICY
    call("train_policy", str(trained), "--seed", str(seed))
    folder.mkdir(parents=True, exist_ok=True)
    for file in model_folder("crafting").iterdir():
        if file.is_file():
            shutil.copy(trained / file.name, folder / file.name)


def value_model(seed: int, name: str, regime: str, data: Path, *options: str) -> None:
    """Plays, and trains."""
    out = MODELS / str(seed) / name
    if not out.exists():
        call(
            "make_value", str(model_folder(policy_of(seed))), "--data", str(data), "--out", str(out), "--seed",
            str(seed), "--temperature", str(TEMPERATURES[regime]), "--target", "return", *options,
        )  # fmt: skip


def main() -> None:
    """Trains what is not there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tasks", type=int, default=3000)
    parser.add_argument("--only", nargs="+", choices=[*ALL, OFFICIAL], default=ALL)
    options = parser.parse_args()
    if POLICY in options.only and options.seed and not (MODELS / str(options.seed)).exists():
        policy(options.seed, options.data)
    played = ["--tasks", str(options.tasks), "--trajectories", str(TRAJECTORIES), "--optimal-steps", *OPTIMAL_STEPS]
    for regime in TEMPERATURES:
        if regime in options.only:
            data = options.data / regime
            value_model(options.seed, f"value-{regime}", regime, data, *played)
            value_model(options.seed, f"value-{regime}-shuffled", regime, data, *played, "--shuffle-targets")
        if OFFICIAL in options.only:
            data = options.data / f"{regime}-{OFFICIAL}"
            value_model(options.seed, f"value-{regime}-{OFFICIAL}", regime, data, *OFFICIAL_PLAY)


if __name__ == "__main__":
    main()
