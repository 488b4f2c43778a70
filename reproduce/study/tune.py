"""Chooses a band's settings in one regime, on training tasks that no model was trained on.

    python reproduce/study/tune.py BAND REGIME [--tasks 60]

Best-of-N and AMC have the temperature of the regime "hot", and choose theirs in "tuned" (as ReAct does); AMC chooses
its resampling steps and beta in both. The models are the shipped policy and seed 0's; other seeds and policies take
what is chosen here. Every setting tried goes to docs/results/study/tuning-BAND-REGIME.json, the choice to
chosen.json. The official tasks' training split is small: there the settings are chosen on tasks that the value model
was trained on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from amc_agents.cli.compare import available_cpus
from settings import BANDS, CHOSEN, HOT, OFFICIAL, RAW, RENAMED, SHIPPED, TEMPERATURES, TUNED, critic_of, policy_of

TRIED = (0.4, 0.5, 0.6, 0.8)
"""Temperatures, where they are tuned."""


def main() -> None:
    """Tunes, and remembers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("band", choices=list(BANDS))
    parser.add_argument("regime", choices=list(TEMPERATURES))
    parser.add_argument("--tasks", type=int, default=60)
    parser.add_argument("--workers", type=int, default=available_cpus())
    options = parser.parse_args()
    band, regime = BANDS[options.band], options.regime
    tried = TRIED if regime == TUNED else (TEMPERATURES[HOT],)
    where = ["--band", *map(str, band)] if band else ["--world", RENAMED, "--first", "0"]
    name = f"{options.band}-{regime}"
    out = RAW.parent / f"tuning-{name}.json"
    subprocess.run(
        [
            sys.executable, "reproduce/crafting/tune.py", *where, "--tasks", str(options.tasks),
            "--model", policy_of(SHIPPED), "--critic", critic_of(SHIPPED, 0, regime, "" if band else OFFICIAL),
            "--temperatures", *map(str, tried),
            "--workers", str(options.workers), "--methods", *(["react"] if regime == TUNED else []), "best-of-n", "amc",
            "--raw", f"runs/study-tuning/{name}", "--out", str(out),
        ],
        check=True,
    )  # fmt: skip
    chosen = json.loads(CHOSEN.read_text(encoding="utf-8")) if CHOSEN.exists() else {}
    best = json.loads(out.read_text(encoding="utf-8"))["chosen"]
    kept = {
        method: {key: cell[key] for key in ("temperature", "steps", "beta", "success_reward")}
        for method, cell in best.items()
    }
    chosen.setdefault(options.band, {})[regime] = kept
    CHOSEN.write_text(json.dumps(chosen, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
