"""Recompute the golden faults and probes of a value adapter's handshake, without training.

    python reproduce/crafting/golden.py FOLDER

FOLDER holds the policy; its value/amc_value.json is rewritten. The golden scores themselves must equal those of the
file. `make_value.py` also writes faults and probes.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from peft import PeftModel
from transformers import AutoModelForSequenceClassification

from amc_agents.critics.value.checkpoint import ValueCheckpoint
from amc_agents.models.tokenizers import WordTokenizer
from amc_agents.training.value.saving import GoldenPrompt, golden_scores, scores_without_adapter

warnings.filterwarnings("ignore", category=FutureWarning)  # peft uses what transformers deprecates


def main() -> None:
    """Score the golden prompts, compare, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    checkpoint = ValueCheckpoint.load(folder / "value")
    base = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, folder / "value").eval()

    prompts = [GoldenPrompt(golden.segments, golden.token_ids) for golden in checkpoint.golden]
    without_adapter = scores_without_adapter(model, prompts)
    encoder = checkpoint.encoder(WordTokenizer.from_folder(folder).encode)
    scored = golden_scores(model.merge_and_unload(), prompts, without_adapter, encoder)
    kept, again = ([golden.score for golden in each] for each in (checkpoint.golden, scored.golden))
    np.testing.assert_allclose(again, kept, rtol=0, atol=1e-6)
    golden = tuple(replace(old, faults=new.faults) for old, new in zip(checkpoint.golden, scored.golden, strict=True))
    replace(checkpoint, golden=golden, probe_scores=scored.probe_scores).save(folder / "value")
    for each in golden:
        print(f"{len(each.token_ids):5} tokens, score {each.score:.5f}, faults {dict(each.faults)}")
    print("probes", scored.probe_scores)


if __name__ == "__main__":
    main()
