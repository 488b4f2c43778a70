"""Choose the settings of a band and regime, on training tasks that no model was trained on.

    python reproduce/study/tune.py BAND REGIME [--tasks 60] [--policy 0] [--methods react,best-of-n,amc]

In the regime "hot", Best-of-N and AMC use temperature 1; in "tuned", their temperatures (and ReAct's) are tuned. AMC's
resampling steps and beta are tuned in both. The models are a policy and its value models of seed 0. Other seeds, and
policies that a method was not tuned for, use the settings of the shipped policy. All settings tried are written to
docs/results/study/tuning-BAND-REGIME.json, the choice to chosen.json. The official training split is small, so its
settings are chosen on tasks that the value model was trained on.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from amc_agents.bench.plan import CRAFTING
from amc_agents.cli.shared_options import available_cpus
from amc_agents.cli.tune import tune
from reproduce.study.settings import (
    BANDS,
    CHOSEN,
    HOT,
    OFFICIAL,
    RAW,
    RENAMED,
    SHIPPED,
    TEMPERATURES,
    TUNED,
    chosen_for,
    critic_of,
    policy_of,
)

TRIED = (0.4, 0.5, 0.6, 0.8)
"""Temperatures to try."""
SUCCESS = 1.0
"""Return of a success."""


def main() -> None:
    """Tune, and save the choice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("band", choices=list(BANDS))
    parser.add_argument("regime", choices=list(TEMPERATURES))
    parser.add_argument("--tasks", type=int, default=60)
    parser.add_argument("--workers", type=int, default=available_cpus())
    parser.add_argument("--policy", type=int, default=SHIPPED)
    parser.add_argument("--methods", help="default: all methods with settings to tune")
    options = parser.parse_args()
    band, regime, place = BANDS[options.band], options.regime, chosen_for(options.band, options.policy)
    name = f"{place}-{regime}"
    tried = TRIED if regime == TUNED else (TEMPERATURES[HOT],)
    out = Path("runs/study-tuning", name)
    tune(
        out,
        world=CRAFTING if band else RENAMED,
        band=band,
        tasks=options.tasks,
        critic=critic_of(options.policy, 0, regime, "" if band else OFFICIAL),
        model=policy_of(options.policy),
        methods=options.methods or ("react,best-of-n,amc" if regime == TUNED else "best-of-n,amc"),
        temperatures=",".join(map(str, tried)),
        success_reward=SUCCESS,
        workers=options.workers,
    )
    kept = RAW.parent / f"tuning-{name}.json"
    shutil.copy(out / "tuning.json", kept)
    chosen = json.loads(CHOSEN.read_text(encoding="utf-8")) if CHOSEN.exists() else {}
    best = json.loads(kept.read_text(encoding="utf-8"))["chosen"]
    # Methods that are not tuned now keep their settings.
    chosen.setdefault(place, {}).setdefault(regime, {}).update(
        {
            method: {key: cell[key] for key in ("temperature", "steps", "beta", "success_reward")}
            for method, cell in best.items()
        }
    )
    CHOSEN.write_text(json.dumps(chosen, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
