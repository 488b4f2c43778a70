"""Trains the bandit sampler from scratch, on one core, counted in steps: a Llama that draws from Beta posteriors.

    python reproduce/exploration/train_sampler.py FOLDER [--seed 0] [--steps 2200]

It reads the posterior of a Bernoulli bandit as text (`mean of arm U: Beta(3, 2)`, five lines) and writes a hypothesis,
one mean an arm. At temperature 1 each mean is to be a draw from the arm's Beta, on a grid of hundredths; so the loss at
a mean is the divergence from the whole Beta, and elsewhere the cross-entropy of the one right word. The form is trained
at temperature 2, so that it holds when draws are made hotter. The counts are drawn at random, not played.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sampler_tokenizer import (
    ARM,
    ARMS,
    ASSISTANT,
    CLOSE,
    END,
    FAILURES,
    FIRST,
    ID,
    MOST,
    NEXT,
    PAD,
    SUCCESSES,
    UNKNOWN,
    USER,
    VALUES,
    WORDS,
    make_tokenizer,
)
from transformers import LlamaConfig, LlamaForCausalLM

N_ARMS = 5
BATCH = 32
LEARNING_RATE = 4e-3
WARM_UP = 60
HOT = 2.0
"""Temperature at which it is still to say a number where one belongs, and the right word elsewhere."""
LINE = 4
"""Tokens of a line: arm, successes, failures, the rest of the line."""
PROMPT = 2 + LINE * N_ARMS + 1
GRID = np.array([float(value) for value in VALUES])
FIRST_VALUE = ID[VALUES[0]]
AT_VALUE = slice(PROMPT + 1, PROMPT + 2 * N_ARMS, 2)
"""Where the means stand in a dialogue."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def counts(rng: np.random.Generator, n: int) -> Ints:
    """`[n, arms, 2]` parameters of Betas after up to 100 pulls, spread over the arms evenly or hardly."""
    pulls = np.where(rng.random(n) < 0.3, rng.integers(0, 16, n), rng.integers(0, MOST, n))
    concentration = rng.choice([0.3, 1.0, 5.0], n)
    shares = np.stack([rng.dirichlet(np.full(N_ARMS, each)) for each in concentration])
    pulled = rng.multinomial(pulls, shares)
    near_half = rng.random((n, 1)) < 0.5
    means = np.where(near_half, rng.beta(10, 10, (n, N_ARMS)), rng.random((n, N_ARMS)))
    paid = rng.binomial(pulled, means)
    return np.stack([1 + paid, 1 + pulled - paid], axis=-1)


def beliefs(parameters: Ints) -> Floats:
    """`[..., values]` each Beta on the grid."""
    successes, failures = parameters[..., :1] - 1, parameters[..., 1:] - 1
    logits = successes * np.log(GRID) + failures * np.log1p(-GRID)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def dialogues(rng: np.random.Generator, n: int) -> tuple[Ints, Floats]:
    """`[n, tokens]` whole dialogues, with means drawn from the posterior; `[n, arms, values]` that posterior."""
    parameters = counts(rng, n)
    target = beliefs(parameters)
    drawn = (target.cumsum(axis=-1) > rng.random((n, N_ARMS, 1))).argmax(axis=-1)
    arms = np.stack([rng.permutation(len(ARMS))[:N_ARMS] for _ in range(n)])
    ids = np.full((n, PROMPT + 2 * N_ARMS + 2), UNKNOWN)
    ids[:, 0] = USER
    ids[:, 2 : PROMPT - 1 : LINE] = ID[ARM[0]] + arms
    ids[:, 3 : PROMPT - 1 : LINE] = ID[SUCCESSES[0]] + parameters[..., 0] - 1
    ids[:, 4 : PROMPT - 1 : LINE] = ID[FAILURES[0]] + parameters[..., 1] - 1
    ids[:, PROMPT - 1] = ASSISTANT
    ids[:, PROMPT : PROMPT + 2 * N_ARMS : 2] = ID[NEXT[0]] + arms
    ids[:, PROMPT] = ID[FIRST[0]] + arms[:, 0]
    ids[:, AT_VALUE] = FIRST_VALUE + drawn
    ids[:, -2:] = ID[CLOSE], END
    return ids, target


ROPE = {"rope_type": "default", "rope_theta": 1000.0}


def model_config() -> LlamaConfig:
    """Head dimension 32, which vLLM's CPU build serves too."""
    return LlamaConfig(
        vocab_size=len(WORDS), hidden_size=64, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=192, max_position_embeddings=256, rope_parameters=ROPE, tie_word_embeddings=True,
        rms_norm_eps=1e-6, bos_token_id=None, eos_token_id=END, pad_token_id=PAD,
    )  # fmt: skip


def learning_rate_factor(step: int, steps: int) -> float:
    """Warm-up, flat for half of the steps, then a cosine down to 2%."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    share = (step - steps / 2) / (steps / 2)
    return 1.0 if share <= 0 else 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share))


def train(model: LlamaForCausalLM, steps: int, seed: int) -> None:
    """Muon for the layers' matrices, AdamW for embeddings and norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers = [
        torch.optim.Muon(matrices, lr=LEARNING_RATE, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    rng, begun = np.random.default_rng([seed, 1]), time.perf_counter()
    divergences, words = [], []
    for step in range(steps):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * learning_rate_factor(step, steps)
        drawn, posterior = dialogues(rng, BATCH)
        ids, target = torch.from_numpy(drawn), torch.from_numpy(posterior).float()
        logits = model(input_ids=ids).logits[:, PROMPT - 1 : -1]
        answer = ids[:, PROMPT:].clone()
        answer[:, 1 : 2 * N_ARMS : 2] = -100
        means = logits[:, 1 : 2 * N_ARMS : 2]
        told = means.log_softmax(-1)[..., FIRST_VALUE : FIRST_VALUE + len(VALUES)]
        divergence = (torch.xlogy(target, target) - target * told).sum(-1).mean()
        word_loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1) / HOT, answer.flatten())
        hot_means = (means / HOT).log_softmax(-1)[..., FIRST_VALUE : FIRST_VALUE + len(VALUES)]
        word_loss = word_loss - hot_means.logsumexp(-1).mean()
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        (word_loss + divergence).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        divergences.append(divergence.item())
        words.append(word_loss.item())
        if (step + 1) % 100 == 0:
            print(
                f"step {step + 1}: divergence {np.mean(divergences[-100:]):.4f} nats a mean, form "
                f"{np.mean(words[-100:]):.5f}, {time.perf_counter() - begun:.0f} s",
                flush=True,
            )


def main() -> None:
    """Train, and save the model in fp16 with its tokenizer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=2200)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    model = LlamaForCausalLM(model_config())
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    train(model, given.steps, given.seed)
    model.half().save_pretrained(given.folder)
    (given.folder / "generation_config.json").unlink(missing_ok=True)
    make_tokenizer().save_pretrained(given.folder)


if __name__ == "__main__":
    main()
