"""How often the bandit sampler's draws make each arm the best one, against exact Thompson sampling.

    python reproduce/exploration/calibrate_sampler.py FOLDER_OR_NAME [--states 60] [--draws 500] [--temperature 1.0]

Held-out posteriors come from bandits that classic PSRL has played for 0 to 100 pulls. Exact probabilities are
integrals. Beside it the distances of as many exact draws, and of exact draws rounded to hundredths as the sampler's are
(of equal means the first one counts).
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import numpy as np
from langchain_core.messages import HumanMessage

from amc_agents.envs.exploration import ExplorationWorld, bandit_task, episodes
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.psrl.episodes import play_episode
from amc_agents.psrl.exact import ClassicPosteriorSampling, exact_model
from amc_agents.psrl.exact.roles import impossible, read_hypothesis
from amc_agents.psrl.roles import HYPOTHESIS, SAMPLE, after

SPLIT = "calibration"
"""Seed stream of the bandits: neither what it was trained on (played nothing) nor where it is measured."""


async def held_out(number: int, n_pulls: int) -> tuple[str, Any]:
    """The rules, and the exact posterior after some pulls."""
    task = bandit_task(number, SPLIT)
    model = exact_model(task)
    agent, rng = ClassicPosteriorSampling(model), np.random.default_rng([7, number])
    posterior = model.prior(task)
    for episode in episodes(task, n_pulls):
        played = await play_episode(ExplorationWorld(), episode, agent, rng, horizon=1)
        posterior = model.updated(posterior, played.steps[0])
    return task.instruction, posterior


def best_arm_probabilities(parameters: Any) -> Any:
    """`[arms]` the probability that each has the largest mean, of `[arms, 2]` parameters of Betas."""
    grid = (np.arange(4000) + 0.5) / 4000
    logs = (parameters[:, :1] - 1) * np.log(grid) + (parameters[:, 1:] - 1) * np.log1p(-grid)
    density = np.exp(logs - logs.max(axis=1, keepdims=True))
    density /= density.sum(axis=1, keepdims=True)
    below = density.cumsum(axis=1) - density / 2
    found = np.array([(density[i] * np.delete(below, i, axis=0).prod(axis=0)).sum() for i in range(len(density))])
    return found / found.sum()


def frequencies(model: Any, world: str, posterior: Any, n_draws: int) -> tuple[Any, int]:
    """`[arms]` how often the model's draw makes each the best, of those that can be read; how many could not be."""
    names, text = list(posterior.parts), str(posterior)
    prompt = HumanMessage(SAMPLE.format(world=world, posterior=text))
    # In parts, so that a batch's keys and values stay small.
    answers = [
        one.text
        for seed in range(n_draws // 100)
        for one in model.generate([[prompt]], n=100, seed=seed).generations[0]
    ]
    said = [after(answer, HYPOTHESIS) for answer in answers]
    usable = [read_hypothesis(one) for one in said if one is not None and not impossible(text, one)]
    best = [max(range(len(names)), key=lambda i: one[names[i]]) for one in usable]
    return np.bincount(best, minlength=len(names)) / len(best), len(answers) - len(usable)


def main() -> None:
    """Print the distances."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--states", type=int, default=60)
    parser.add_argument("--draws", type=int, default=500, help="of each state, in hundreds")
    parser.add_argument("--temperature", type=float, default=1.0)
    given = parser.parse_args()
    model, rng = EmbeddedChatModel(model=given.model, temperature=given.temperature), np.random.default_rng(0)
    distances, floors, rounded, unreadable = [], [], [], 0
    for number in range(given.states):
        world, posterior = asyncio.run(held_out(number, int(rng.integers(0, 101))))
        parameters = np.array([(part.successes, part.failures) for part in posterior.parts.values()])
        exact = best_arm_probabilities(parameters)
        found, n_wrong = frequencies(model, world, posterior, given.draws)
        unreadable += n_wrong
        distances.append(np.abs(found - exact).sum() / 2)
        floors.append(np.abs(rng.multinomial(given.draws, exact) / given.draws - exact).sum() / 2)
        successes, failures = parameters.T
        draws = np.floor(100 * rng.beta(successes, failures, size=(given.draws, len(exact)))).argmax(axis=1)
        rounded.append(np.abs(np.bincount(draws, minlength=len(exact)) / given.draws - exact).sum() / 2)
    error = np.std(distances, ddof=1) / np.sqrt(given.states)
    print(
        f"{given.states} posteriors, {given.draws} draws each, temperature {given.temperature:g}: total variation "
        f"{np.mean(distances):.4f} ± {error:.4f} (largest {max(distances):.3f}); as many exact draws "
        f"{np.mean(floors):.4f} (largest {max(floors):.3f}), rounded {np.mean(rounded):.4f}; "
        f"{unreadable} answers of {given.states * given.draws} that the role cannot read"
    )


if __name__ == "__main__":
    main()
