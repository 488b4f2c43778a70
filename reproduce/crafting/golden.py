"""Scores the golden prompts of a value adapter again, with the faults that a server may have and the two probes.

    python reproduce/crafting/golden.py FOLDER

FOLDER is the policy's; its value/amc_value.json is written again. The golden scores themselves must come out as they
are in the file: no training is done, and what they prove stays proven. `make_value.py` writes all of this by itself.
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
from amc_agents.models.embedded.tokenizer import WordTokenizer
from amc_agents.training.value.golden import GoldenPrompt, golden_scores, scores_without_adapter

warnings.filterwarnings("ignore", category=FutureWarning)  # peft uses what transformers deprecates


def main() -> None:
    """Scores, compares, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    checkpoint = ValueCheckpoint.load(folder / "value")
    base = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, folder / "value").eval()

    prompts = [GoldenPrompt(one.segments, one.token_ids) for one in checkpoint.golden]
    without_adapter = scores_without_adapter(model, prompts)
    encoder = checkpoint.encoder(WordTokenizer.from_folder(folder).encode)
    found = golden_scores(model.merge_and_unload(), prompts, without_adapter, encoder)
    kept, again = ([one.score for one in golden] for golden in (checkpoint.golden, found.golden))
    np.testing.assert_allclose(again, kept, rtol=0, atol=1e-6)
    golden = tuple(replace(old, faults=new.faults) for old, new in zip(checkpoint.golden, found.golden, strict=True))
    replace(checkpoint, golden=golden, probe_scores=found.probe_scores).save(folder / "value")
    for one in golden:
        print(f"{len(one.token_ids):5} tokens, score {one.score:.5f}, faults {dict(one.faults)}")
    print("probes", found.probe_scores)


if __name__ == "__main__":
    main()
