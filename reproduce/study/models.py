"""Train the value models of a seed, with controls on shuffled targets for each regime; or a policy.

    python reproduce/study/models.py SEED --data DATA [--policy 0] [--only hot tuned shuffled policy official ablations]

Minutes on one core: 12 for a regime's value model, 8 for a control, 65 for a policy, 25 for the official recipes
(AMC_TEXTCRAFT names their folder), 150 for the ablations. Policy 0 is the shipped policy. Finished models are kept, and
interrupted collections resume. The models are written to reproduce/study/models/POLICY/SEED.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from amc_agents.models.embedded import model_folder
from reproduce.study.ablations import SOFT_BETA
from reproduce.study.settings import (
    FROM_SCRATCH,
    LARGER,
    MODELS,
    OFFICIAL,
    RENAMED,
    SHIPPED,
    TAUGHT,
    TEMPERATURES,
    TUNED,
    adapter_of,
    base_of,
    policy_of,
)

OFFICIAL_PLAY = ("--world", RENAMED, "--tasks", "374", "--trajectories", "8")
"""The published training split."""
AGAIN = {FROM_SCRATCH: 1}
"""Policy -> repetitions of the last training stage."""
POLICY, SHUFFLED, ABLATIONS = "policy", "shuffled", "ablations"
LOSS = ("--loss", "bce")
OTHERS: dict[str, tuple[str, ...]] = {
    "squared": (),
    "weighted": ("--loss", "weighted", "--beta", "0.5"),
    "soft": ("--soft", "--beta", str(SOFT_BETA)),
    **{str(limit): (*LOSS, "--limit", str(limit)) for limit in (500, 1000, 2000)},
}
"""Value models of `ablations.TRAINED` that are trained on the same trajectories -> options."""
BASES: dict[str, tuple[str, ...]] = {TAUGHT: (), LARGER: ("--layers", "6")}
"""Value models of `ablations.TRAINED` with another base -> options of the base's pretraining."""


def play_of(seed: int) -> tuple[str, ...]:
    """Return the options of a seed's collection: different tasks per seed, and several trajectories per task."""
    return ("--tasks", "500", "--trajectories", "8", "--optimal-steps", "8", "16", "--first", str(10_000 * seed))


def call(script: str, *arguments: str) -> None:
    """Run a script of reproduce/crafting."""
    subprocess.run([sys.executable, "-m", f"reproduce.crafting.{script}", *arguments], check=True)


def train_policy(number: int, data: Path) -> None:
    """Train a policy with its number as the seed; its stages are kept in `data`."""
    folder, trained = MODELS / str(number), data / POLICY
    call("train_policy", str(trained), "--seed", str(number), "--again", str(AGAIN.get(number, 0)))
    folder.mkdir(parents=True, exist_ok=True)
    for file in model_folder("crafting").iterdir():
        if file.is_file():
            shutil.copy(trained / file.name, folder / file.name)


def value_model(policy: int, seed: int, regime: str, kind: str, data: Path, *options: str) -> None:
    """Collect the trajectories that `data` lacks, and train the value model unless it exists."""
    out = adapter_of(policy, seed, regime, kind)
    if not out.exists():
        call(
            "make_value", str(model_folder(policy_of(policy))), "--data", str(data), "--out", str(out),
            "--seed", str(seed), "--temperature", str(TEMPERATURES[regime]), "--target", "return", *options,
        )  # fmt: skip


def ablations(data: Path) -> None:
    """Train the value models of the ablations, for the shipped policy."""
    played = data / TUNED
    for kind, options in OTHERS.items():
        value_model(SHIPPED, 0, TUNED, kind, played, *play_of(0), *options)
    for kind, options in BASES.items():
        base = base_of(SHIPPED, kind)
        if not Path(base).exists():
            call("pretrain_value", str(model_folder(policy_of(SHIPPED))), base, "--steps", "3000", *options)
        value_model(SHIPPED, 0, TUNED, kind, played, *play_of(0), *LOSS, "--base", base)
    player = policy_of(FROM_SCRATCH)
    value_model(SHIPPED, 0, TUNED, "surrogate", data / "surrogate", *play_of(0), *LOSS, "--player", player)


def main() -> None:
    """Train the missing models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of the trajectories, different for each policy and seed"
    )
    parser.add_argument("--policy", type=int, default=SHIPPED)
    usual = [*TEMPERATURES, SHUFFLED]
    parser.add_argument("--only", nargs="+", choices=[*usual, POLICY, OFFICIAL, ABLATIONS], default=usual)
    options = parser.parse_args()
    only, data = options.only, options.data
    if POLICY in only and options.policy == SHIPPED:
        parser.error(f"policy {SHIPPED} is shipped and not trained: choose another with --policy")
    if ABLATIONS in only and (options.seed, options.policy) != (0, SHIPPED):
        parser.error("the ablations exist only for seed 0 and the shipped policy")
    if POLICY in only and not (MODELS / str(options.policy) / "config.json").exists():
        train_policy(options.policy, data)
    of = options.policy, options.seed
    for regime in TEMPERATURES:
        if regime in only:
            value_model(*of, regime, "", data / regime, *play_of(options.seed), *LOSS)
    for regime in TEMPERATURES:
        if SHUFFLED in only:
            value_model(*of, regime, SHUFFLED, data / regime, *play_of(options.seed), *LOSS, "--shuffle-targets")
        if OFFICIAL in only:
            value_model(*of, regime, OFFICIAL, data / f"{regime}-{OFFICIAL}", *OFFICIAL_PLAY, *LOSS)
    if ABLATIONS in only:
        ablations(data)


if __name__ == "__main__":
    main()
