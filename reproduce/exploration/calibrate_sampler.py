"""Compare the bandit sampler's choices of the best arm with exact Thompson sampling.

    python reproduce/exploration/calibrate_sampler.py FOLDER_OR_NAME [--states 60] [--draws 500] [--temperature 1.0]

Held-out posteriors come from bandits after 0 to 100 pulls of classic PSRL. Exact probabilities are integrals. Also
prints the distances of as many exact draws, and of exact draws rounded to hundredths like the sampler's (the first of
equal means counts as the best).
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import numpy as np
from langchain_core.messages import HumanMessage

from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.psrl.posterior.priors import impossible, read_hypothesis
from amc_agents.psrl.roles import HYPOTHESIS, SAMPLE, after
from amc_agents_exploration.episodic import play_episode
from amc_agents_exploration.exact import ClassicPosteriorSampling, exact_model
from amc_agents_exploration.worlds import ExplorationWorld, bandit_task, episodes

SPLIT = "calibration"
"""Seed stream of the bandits, which no other script uses."""


async def held_out(number: int, n_pulls: int) -> tuple[str, Any]:
    """Return the rules, and the exact posterior after `n_pulls` pulls."""
    task = bandit_task(number, SPLIT)
    model = exact_model(task)
    agent, rng = ClassicPosteriorSampling(model), np.random.default_rng([7, number])
    posterior = model.prior(task)
    for episode in episodes(task, n_pulls):
        played = await play_episode(ExplorationWorld(), episode, agent, rng, horizon=1)
        posterior = model.updated(posterior, played.steps[0])
    return task.instruction, posterior


def best_arm_probabilities(parameters: Any) -> Any:
    """`[arms]` probability that each arm has the largest mean, from `[arms, 2]` parameters of Betas."""
    grid = (np.arange(4000) + 0.5) / 4000
    logs = (parameters[:, :1] - 1) * np.log(grid) + (parameters[:, 1:] - 1) * np.log1p(-grid)
    density = np.exp(logs - logs.max(axis=1, keepdims=True))
    density /= density.sum(axis=1, keepdims=True)
    below = density.cumsum(axis=1) - density / 2
    probabilities = np.array(
        [(density[i] * np.delete(below, i, axis=0).prod(axis=0)).sum() for i in range(len(density))]
    )
    return probabilities / probabilities.sum()


def frequencies(model: Any, world: str, posterior: Any, n_draws: int) -> tuple[Any, int]:
    """Return `[arms]` how often each arm is the best in the readable draws, and the number of unreadable draws."""
    names, text = list(posterior.parts), str(posterior)
    prompt = HumanMessage(SAMPLE.format(world=world, posterior=text))
    # In batches, to bound the size of keys and values.
    answers = [
        generation.text
        for seed in range(n_draws // 100)
        for generation in model.generate([[prompt]], n=100, seed=seed).generations[0]
    ]
    hypotheses = [after(answer, HYPOTHESIS) for answer in answers]
    usable = [read_hypothesis(each) for each in hypotheses if each is not None and not impossible(text, each)]
    best = [max(range(len(names)), key=lambda i: means[names[i]]) for means in usable]
    return np.bincount(best, minlength=len(names)) / len(best), len(answers) - len(usable)


def main() -> None:
    """Print the distances."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--states", type=int, default=60)
    parser.add_argument("--draws", type=int, default=500, help="draws per state, a multiple of 100")
    parser.add_argument("--temperature", type=float, default=1.0)
    options = parser.parse_args()
    model, rng = EmbeddedChatModel(model=options.model, temperature=options.temperature), np.random.default_rng(0)
    distances, floors, rounded, unreadable = [], [], [], 0
    for number in range(options.states):
        world, posterior = asyncio.run(held_out(number, int(rng.integers(0, 101))))
        parameters = np.array([(part.successes, part.failures) for part in posterior.parts.values()])
        exact = best_arm_probabilities(parameters)
        measured, n_wrong = frequencies(model, world, posterior, options.draws)
        unreadable += n_wrong
        distances.append(np.abs(measured - exact).sum() / 2)
        floors.append(np.abs(rng.multinomial(options.draws, exact) / options.draws - exact).sum() / 2)
        successes, failures = parameters.T
        draws = np.floor(100 * rng.beta(successes, failures, size=(options.draws, len(exact)))).argmax(axis=1)
        rounded.append(np.abs(np.bincount(draws, minlength=len(exact)) / options.draws - exact).sum() / 2)
    error = np.std(distances, ddof=1) / np.sqrt(options.states)
    print(
        f"{options.states} posteriors, {options.draws} draws each, temperature {options.temperature:g}: total "
        f"variation {np.mean(distances):.4f} ± {error:.4f} (largest {max(distances):.3f}); as many exact draws "
        f"{np.mean(floors):.4f} (largest {max(floors):.3f}), rounded {np.mean(rounded):.4f}; "
        f"{unreadable} answers of {options.states * options.draws} that the role cannot read"
    )


if __name__ == "__main__":
    main()
