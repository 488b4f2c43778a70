"""Make the base of a value model: a small language model of the texts of a dataset that `amc collect` wrote.

    python reproduce/worlds/train_base.py DATA OUT --vocabulary 1000 --context 1024 --steps 300

Then `amc train value --base OUT`. With a language model that reads the world's words, this script is not needed.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from amc_agents.critics.render import PLAIN
from amc_agents.training.dataset import read_trajectories
from reproduce.policy_training import optimizers, padded, set_learning_rate, small_llama, token_losses, update
from reproduce.word_tokenizer import SPECIAL

LEARNING_RATE = 4e-3


def make_tokenizer(texts: list[str], size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level tokenizer, in which no word is unknown; the special tokens come first."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=size, special_tokens=list(SPECIAL), initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|end|>", pad_token="<pad>", unk_token="<unk>")


def train(data: str, out: str, *, vocabulary: int, context: int, steps: int, batch: int, seed: int) -> None:
    """Write a transformers folder with the model and its tokenizer."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    texts = ["".join(PLAIN.segments(trajectory)) for trajectory in read_trajectories(data)]
    tokenizer = make_tokenizer(texts, vocabulary)
    tokens = [tokenizer(text)["input_ids"] for text in texts]
    longest = max(map(len, tokens))
    print(f"{len(texts)} texts, {np.mean([len(row) for row in tokens]):.0f} tokens in the mean, {longest} at most")
    model = small_llama(len(tokenizer), context=4096)
    print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters")
    parts, rng, start = optimizers(model, LEARNING_RATE), np.random.default_rng(seed), time.monotonic()
    for step in range(steps):
        rows = [_window(tokens[index], context, rng) for index in rng.integers(len(tokens), size=batch)]
        set_learning_rate(parts, LEARNING_RATE, step, steps)
        losses, weight = token_losses(model, *padded([(row, [1.0] * len(row)) for row in rows]))
        loss = (losses * weight).sum() / weight.sum()
        update(parts, loss, list(model.parameters()))
        if (step + 1) % 50 == 0:
            print(f"step {step + 1}: loss {float(loss.detach()):.3f}, {time.monotonic() - start:.0f} s", flush=True)
    model.save_pretrained(Path(out))
    tokenizer.save_pretrained(out)


def _window(row: list[int], size: int, rng: np.random.Generator) -> list[int]:
    first = int(rng.integers(max(len(row) - size, 0) + 1))
    return row[first : first + size]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("out")
    for option, default in {"vocabulary": 1000, "context": 512, "steps": 300, "batch": 12, "seed": 0}.items():
        parser.add_argument(f"--{option}", type=int, default=default)
    train(**vars(parser.parse_args()))
