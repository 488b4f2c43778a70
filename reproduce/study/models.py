"""Trains one seed's models: the policy, and for each regime a value model and its control on shuffled targets.

    python reproduce/study/models.py SEED --data DATA [--only policy hot tuned shuffled official ablations]

Minutes on one core: 45 for a policy, 15 for a regime's value model, 8 for a control, 25 for the official recipes
(AMC_TEXTCRAFT names their folder). The policy of seed 0 is the shipped one. What is done is not done again, and what
was interrupted goes on where it was. Written to reproduce/study/models/SEED.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from ablations import SOFT_BETA
from amc_agents.models.embedded import model_folder
from settings import MODELS, OFFICIAL, RENAMED, TEMPERATURES, TUNED, policy_of

PLAY = ("--tasks", "500", "--trajectories", "8", "--optimal-steps", "8", "16")
"""Siblings of one task are what a population has to tell apart."""
OFFICIAL_PLAY = ("--world", RENAMED, "--tasks", "374", "--trajectories", "8")
"""All of the published training split."""
POLICY, SHUFFLED, ABLATIONS = "policy", "shuffled", "ablations"
LOSS = ("--loss", "bce")
OTHERS = {
    "squared": (),
    "weighted": ("--loss", "weighted", "--beta", "0.5"),
    "soft": ("--soft", "--beta", str(SOFT_BETA)),
    **{str(limit): (*LOSS, "--limit", str(limit)) for limit in (500, 1000, 2000)},
}
"""Value models of `ablations.TRAINED` that are trained on the same play: how."""


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
    """Plays what DATA lacks, and trains what is not there."""
    out = MODELS / str(seed) / name
    if not out.exists():
        call(
            "make_value", str(model_folder(policy_of(seed))), "--data", str(data), "--out", str(out), "--seed",
            str(seed), "--temperature", str(TEMPERATURES[regime]), "--target", "return", *options,
        )  # fmt: skip


def ablations(data: Path) -> None:
    """Seed 0's other value models."""
    own = data / TUNED
    for kind, options in OTHERS.items():
        value_model(0, f"value-{TUNED}-{kind}", TUNED, own, *PLAY, *options)
    played = data / "surrogate"
    value_model(0, f"value-{TUNED}-surrogate", TUNED, played, *PLAY, *LOSS, "--player", policy_of(1))


def main() -> None:
    """Trains what is not there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("--data", type=Path, required=True)
    usual = [POLICY, *TEMPERATURES, SHUFFLED]
    parser.add_argument("--only", nargs="+", choices=[*usual, OFFICIAL, ABLATIONS], default=usual)
    options = parser.parse_args()
    if POLICY in options.only and options.seed and not (MODELS / str(options.seed)).exists():
        policy(options.seed, options.data)
    for regime in TEMPERATURES:
        if regime in options.only:
            value_model(options.seed, f"value-{regime}", regime, options.data / regime, *PLAY, *LOSS)
    for regime in TEMPERATURES:
        if SHUFFLED in options.only:
            name, data = f"value-{regime}-{SHUFFLED}", options.data / regime
            value_model(options.seed, name, regime, data, *PLAY, *LOSS, "--shuffle-targets")
        if OFFICIAL in options.only:
            data = options.data / f"{regime}-{OFFICIAL}"
            value_model(options.seed, f"value-{regime}-{OFFICIAL}", regime, data, *OFFICIAL_PLAY, *LOSS)
    if ABLATIONS in options.only:
        if options.seed:
            parser.error("the ablations are of seed 0 alone")
        ablations(options.data)


if __name__ == "__main__":
    main()
