"""The shipped policy and value model themselves: what a user gets without a key and a GPU."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from langchain_core.messages import HumanMessage

from amc_agents import AtSteps, Never, amc, parse_critic, text_agent
from amc_agents.bench.workshop_critic import WorkshopCritic
from amc_agents.envs import workshop
from amc_agents.envs.crafting import CraftingWorld, generate_tasks
from amc_agents.envs.workshop import WorkshopWorld
from amc_agents.models.embedded import EmbeddedChatModel, model_folder
from amc_agents.models.embedded.llama import NumpyLlama
from amc_agents.models.tokenizers import WordTokenizer
from tests.arguments import arguments


def dialogue(tokenizer, task):
    said = [("user", task.instruction), ("assistant", "Action: inventory"), ("user", "Inventory: [clay] (2) ")]
    return tokenizer.encode_chat(said)


def test_the_policys_logits_are_those_of_transformers():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = model_folder("crafting")
    theirs = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ours, tokenizer = NumpyLlama.load(folder), WordTokenizer.from_folder(folder)
    for task in generate_tasks(3, "shipped", optimal_steps=(9, 14)):
        ids = dialogue(tokenizer, task)
        hidden = ours.forward(np.array(ids), np.array([len(ids)]), ours.new_rows(), 0)
        with torch.no_grad():
            expected = theirs(torch.tensor([ids])).logits[0].numpy()
        found = ours.logits(hidden)
        assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


async def play(task, temperature, critic="uniform", **settings):
    settings = {"resample": Never(), "horizon": 20, "seed": 1} | settings
    policy = text_agent(EmbeddedChatModel(temperature=temperature))
    graph = amc(policy, critic, **arguments(environment=lambda state: (CraftingWorld(), task), **settings))
    return await graph.arun({"messages": [HumanMessage(task.instruction)]})


@pytest.mark.thorough
async def test_the_policy_solves_easy_tasks_and_errs_on_hard_ones():
    means = []
    for band in ((3, 6), (12, 16)):
        tasks = generate_tasks(6, "shipped", optimal_steps=band)
        runs = [await play(task, 0.7, n_particles=4) for task in tasks]
        means.append(np.mean([one.return_ for run in runs for one in run.population.trajectories]))
    assert means[0] > 0.6 > means[1]


@pytest.mark.thorough
async def test_the_value_model_tells_successes_from_failures():
    critic = parse_critic("embedded:crafting")
    tasks = generate_tasks(8, "shipped", first_seed=100, optimal_steps=(8, 12))
    runs = [await play(task, 1.0, n_particles=8) for task in tasks]
    played = [one for run in runs for one in run.population.trajectories]
    success = np.array([one.return_ > 0 for one in played])
    values = await critic.values([one.prefix(min(8, len(one.steps) - 1)) for one in played])
    assert 0 < success.sum() < len(success)
    wins = values[success][:, None] > values[~success][None, :]
    assert wins.mean() > 0.65, "area under the ROC curve after 8 steps"


@pytest.mark.thorough
@pytest.mark.parametrize("hidden", [False, True])
async def test_amc_with_the_shipped_critic_runs_hidden_and_seen(hidden):
    task = next(generate_tasks(1, "shipped", optimal_steps=(8, 8)))
    settings = {"resample": AtSteps(4), "beta": 0.1, "n_particles": 6, "hide_rewards": hidden}
    run = await play(task, 1.0, "embedded:crafting", **settings)
    assert np.unique(run.history[0].values).size > 1
    assert run.usage["critic"].calls > 0
    assert run.deployable is hidden


def workshop_of(task, state):
    return WorkshopWorld(), task


@pytest.mark.thorough
async def test_the_workshop_policy_succeeds_now_and_then_and_errs_for_good():
    ends = []
    for kind in ("stock", "hidden", "both"):
        for task in workshop.generate_tasks(4, "shipped", kind=kind):
            graph = amc(
                text_agent(EmbeddedChatModel(model="workshop", temperature=0.7)), "uniform", n_particles=4,
                resample=Never(), horizon=20, seed=1, environment=partial(workshop_of, task),
            )  # fmt: skip
            run = await graph.arun({"messages": [HumanMessage(task.instruction)]})
            ends.extend(await WorkshopCritic().values(run.population.trajectories))
    assert 0.1 < np.mean(np.array(ends) == 1.0) < 0.5
    assert np.mean(np.array(ends) == 0.0) > 0.3
