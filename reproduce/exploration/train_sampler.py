"""Train the bandit sampler from scratch on one core: a Llama that draws from Beta posteriors.

    python reproduce/exploration/train_sampler.py FOLDER [--seed 0] [--steps 2200]

The model reads the posterior of a Bernoulli bandit as text (`mean of arm U: Beta(3, 2)`, five lines) and writes a
hypothesis, a mean for each arm. At temperature 1 each mean should be a draw from the arm's Beta, on a grid of
hundredths; so the loss at a mean is the divergence from the whole Beta, and elsewhere the cross-entropy of the correct
word. The form is trained at temperature 2, so that it also holds at higher sampling temperatures. Counts are drawn at
random, not played.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaForCausalLM

from reproduce.exploration.sampler_tokenizer import (
    ARM,
    ARMS,
    CLOSE,
    FAILURES,
    FIRST,
    ID,
    MAX_COUNT,
    NEXT,
    SUCCESSES,
    VALUES,
    make_tokenizer,
)
from reproduce.policy_training import optimizers, set_learning_rate, small_llama, update
from reproduce.word_tokenizer import ASSISTANT, END, UNKNOWN, USER

N_ARMS = 5
BATCH = 32
LEARNING_RATE = 4e-3
HOT = 2.0
"""Highest temperature at which it must write a number for each mean, and the correct word elsewhere."""
LINE = 4
"""Tokens of a line: arm, successes, failures, the rest."""
PROMPT = 2 + LINE * N_ARMS + 1
GRID = np.array([float(value) for value in VALUES])
FIRST_VALUE = ID[VALUES[0]]
AT_VALUE = slice(PROMPT + 1, PROMPT + 2 * N_ARMS, 2)
"""Positions of the means in a dialogue."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def counts(rng: np.random.Generator, n: int) -> Ints:
    """`[n, arms, 2]` parameters of Betas after up to 100 pulls, spread over the arms evenly or unevenly."""
    pulls = np.where(rng.random(n) < 0.3, rng.integers(0, 16, n), rng.integers(0, MAX_COUNT, n))
    concentration = rng.choice([0.3, 1.0, 5.0], n)
    shares = np.stack([rng.dirichlet(np.full(N_ARMS, each)) for each in concentration])
    pulled = rng.multinomial(pulls, shares)
    near_half = rng.random((n, 1)) < 0.5
    means = np.where(near_half, rng.beta(10, 10, (n, N_ARMS)), rng.random((n, N_ARMS)))
    paid = rng.binomial(pulled, means)
    return np.stack([1 + paid, 1 + pulled - paid], axis=-1)


def beliefs(parameters: Ints) -> Floats:
    """`[..., values]` probabilities of each Beta on the grid."""
    successes, failures = parameters[..., :1] - 1, parameters[..., 1:] - 1
    logits = successes * np.log(GRID) + failures * np.log1p(-GRID)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def dialogues(rng: np.random.Generator, n: int) -> tuple[Ints, Floats]:
    """Draw `[n, tokens]` dialogues with means drawn from the posterior, and `[n, arms, values]` the posterior."""
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


def train(model: LlamaForCausalLM, steps: int, seed: int) -> None:
    """Train the model in place, and print the losses every 100 steps."""
    parts, parameters = optimizers(model, LEARNING_RATE), list(model.parameters())
    rng, start = np.random.default_rng([seed, 1]), time.perf_counter()
    divergences, forms = [], []
    for step in range(steps):
        set_learning_rate(parts, LEARNING_RATE, step, steps)
        form, divergence = losses(model, *dialogues(rng, BATCH))
        update(parts, form + divergence, parameters)
        divergences.append(divergence.item())
        forms.append(form.item())
        if (step + 1) % 100 == 0:
            print(
                f"step {step + 1}: divergence {np.mean(divergences[-100:]):.4f} nats a mean, form "
                f"{np.mean(forms[-100:]):.5f}, {time.perf_counter() - start:.0f} s",
                flush=True,
            )


def losses(model: LlamaForCausalLM, drawn: Ints, posterior: Floats) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of the form, at temperature `HOT`, and the divergence of the means from the posterior."""
    ids, target = torch.from_numpy(drawn), torch.from_numpy(posterior).float()
    logits = model(input_ids=ids).logits[:, PROMPT - 1 : -1]
    answer = ids[:, PROMPT:].clone()
    answer[:, 1 : 2 * N_ARMS : 2] = -100
    means = logits[:, 1 : 2 * N_ARMS : 2]
    log_p = means.log_softmax(-1)[..., FIRST_VALUE : FIRST_VALUE + len(VALUES)]
    divergence = (torch.xlogy(target, target) - target * log_p).sum(-1).mean()
    form = torch.nn.functional.cross_entropy(logits.flatten(0, 1) / HOT, answer.flatten())
    hot_means = (means / HOT).log_softmax(-1)[..., FIRST_VALUE : FIRST_VALUE + len(VALUES)]
    return form - hot_means.logsumexp(-1).mean(), divergence


def main() -> None:
    """Train, and save the model in float16 with its tokenizer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=2200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    model = small_llama(len(ID), hidden=64, heads=2, intermediate=192, context=256)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    train(model, options.steps, options.seed)
    model.half().save_pretrained(options.folder)
    (options.folder / "generation_config.json").unlink(missing_ok=True)
    make_tokenizer().save_pretrained(options.folder)


if __name__ == "__main__":
    main()
