"""A policy learns from what a search found: weights within a task, rows, training, resuming."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from amc_agents.errors import ConfigurationError
from amc_agents.models.embedded import EmbeddedChatModel, WordTokenizer
from amc_agents.models.transformers_chat import HFChatTokenizer
from amc_agents.runtime.text_agent import text_agent
from amc_agents.testing.enumerable import EnumerableWorld
from amc_agents.training.collecting import independent_trajectories
from amc_agents.training.dataset import LoggedTrajectory, read_records, write_shard
from amc_agents.types import Step, Task, Trajectory
from reproduce.distill.collect import Search, main
from reproduce.distill.dialogues import PolicyRow, rows_of
from reproduce.distill.distillation import EMBEDDED, FILE, distill
from reproduce.distill.imitated import Imitated, imitated, shares
from reproduce.distill.train import app as COMMAND
from reproduce.distill.weighted_trainer import mean_loss
from tests.training.toy_trajectories import tiny_llama
from tests.training.walks import Steps, Walk

GOOD, BAD = (Step(f"get 2 {item}", "Got it", "I need it") for item in ("flint", "bone"))
QUICK = replace(EMBEDDED, learning_rate=3e-3, epochs=2, batch_size=4)
SEARCHED = json.dumps({"search": {"critic": "uniform"}})


def played(task, step, return_, *, group=0, settings="{}"):
    steps = step, Step("finish", "Done", reward=return_)
    return LoggedTrajectory(Trajectory(Task(f"t{task}", "Craft 1 oak planks."), steps, True), group, settings=settings)


DATA = [
    played(task, step, float(step is GOOD), group=group) for task in range(6) for group, step in enumerate((GOOD, BAD))
]


@pytest.fixture(scope="module")
def base_model(tmp_path_factory):
    """A tiny Llama of random weights with the shipped tokenizer."""
    return tiny_llama(tmp_path_factory.mktemp("base"))


@pytest.fixture
def data(tmp_path):
    write_shard(tmp_path / "data", DATA)
    return tmp_path / "data"


def test_the_likeliest_policy_of_weighted_leaves_is_the_tilted_one():
    """At each node, a weighted likelihood is highest for the shares of the leaves below each child."""
    world, beta = EnumerableWorld.random(3, max_depth=4, n_leaves=(8, 14)), 0.7
    rng, leaves = np.random.default_rng(0), world.leaves.tolist()
    drawn = rng.choice(leaves, 20_000, p=world.pi)
    found = shares(drawn.tolist(), (world.returns[drawn] / beta).tolist(), 0.0)
    assert [found.get(leaf, 0.0) for leaf in leaves] == pytest.approx(world.posterior(beta), abs=0.02)
    assert np.abs(world.posterior(beta) - world.pi).max() > 0.1


def test_shares_merge_copies_and_leave_out_small_ones():
    found = shares(["a", "b", "a", "c"], np.log([1.0, 1.0, 1.998, 0.002]).tolist())
    assert found == pytest.approx({"a": 2.998 / 3.998, "b": 1 / 3.998})


def test_independent_trajectories_are_tilted_by_their_return_and_drawn_ones_are_not():
    tilted = imitated(DATA[:2], beta=0.5, success=1.0)["t0"]
    assert [each.share for each in tilted] == pytest.approx(np.exp([2.0, 0.0]) / np.exp([2.0, 0.0]).sum())
    drawn = [replace(each, settings=SEARCHED) for each in (DATA[0], DATA[0], DATA[1])]
    assert [each.share for each in imitated(drawn, beta=0.5, success=1.0)["t0"]] == pytest.approx([2 / 3, 1 / 3])


def test_tasks_without_a_success_are_left_out():
    assert list(imitated([*DATA, played(9, BAD, 0.5)], beta=0.1, success=1.0)) == [f"t{task}" for task in range(6)]


def test_only_the_turns_and_their_ends_are_learnt(base_model):
    tokenizer = AutoTokenizer.from_pretrained(base_model)
    encode, words = HFChatTokenizer(tokenizer).encode_chat, WordTokenizer.from_folder(base_model)
    whole = [Imitated(DATA[0].trajectory, 0.25)]
    (row,), _ = rows_of([whole], encode, {words.end_id}, system=None, limit=None)
    said = [token for token, weight in zip(row.ids, row.weights, strict=True) if weight]
    turns = ["Thought: I need it\nAction: get 2 flint", "Action: finish"]
    assert said == [token for turn in turns for token in (*words.encode(turn), words.end_id)]
    assert set(row.weights) == {0.0, 0.25}
    dialogue = [
        ("user", "Craft 1 oak planks."),
        ("assistant", turns[0]),
        ("user", "Got it"),
        ("assistant", turns[1]),
    ]
    assert list(row.ids) == words.encode_chat(dialogue, add_generation_prompt=False)
    assert rows_of([whole], encode, {words.end_id}, system=None, limit=len(row.ids) - 1) == ([], 1)
    (told,), _ = rows_of([whole], encode, {words.end_id}, system="Craft 1 oak planks.", limit=None)
    assert sum(map(bool, told.weights)) == len(said)
    assert len(told.ids) > len(row.ids)


def test_a_trajectory_counts_by_its_share_in_any_batch(base_model):
    model = AutoModelForCausalLM.from_pretrained(base_model)
    rows = [PolicyRow((5, 6, 7, 8), (0.0, 0.0, w, w)) for w in (0.9, 0.1)] + [PolicyRow((9, 8, 7), (0.0, 0.5, 0.0))]
    alone = [mean_loss(model, [row], pad_id=0, batch_size=1) * sum(row.weights) for row in rows]
    assert mean_loss(model, rows, pad_id=0, batch_size=2) == pytest.approx(sum(alone) / 2.5, rel=1e-5)
    assert alone[0] == pytest.approx(9 * alone[1], rel=1e-5)


@pytest.mark.thorough
def test_the_policy_learns_the_better_trajectory(base_model, data, tmp_path):
    out = tmp_path / "policy"
    done = distill(base_model, data, out, replace(QUICK, epochs=8, learning_rate=1e-2))
    assert done.metrics["held_out_loss"] < done.metrics["held_out_loss_before"]
    assert json.loads((out / FILE).read_text())["metrics"] == done.metrics
    # The two differ by a word. With equal weights both would be learnt alike.
    assert preference(out) > preference(base_model) + 1
    assert EmbeddedChatModel(model=str(out), temperature=0.0).invoke("Craft 1 oak planks.").text


@pytest.mark.thorough
def test_an_adapter_is_merged_into_the_saved_policy(base_model, data, tmp_path):
    done = distill(base_model, data, tmp_path / "policy", replace(QUICK, lora_rank=4, learning_rate=1e-2))
    assert done.metrics["held_out_loss"] < done.metrics["held_out_loss_before"]
    before, after = (load_file(folder / "model.safetensors") for folder in (base_model, tmp_path / "policy"))
    assert before.keys() == after.keys()
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(before[name], after[name])


def preference(folder):
    """Log-odds of GOOD against BAD as the first turn."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    turns = [[Imitated(Trajectory(Task("t", "Craft 1 oak planks."), (step,), True), 1.0)] for step in (BAD, GOOD)]
    encode = HFChatTokenizer(tokenizer).encode_chat
    rows, _ = rows_of(turns, encode, {tokenizer.eos_token_id}, system=None, limit=None)
    model = AutoModelForCausalLM.from_pretrained(folder)
    bad, good = (mean_loss(model, [row], pad_id=0, batch_size=1) * sum(row.weights) for row in rows)
    return bad - good


class Killed(BaseException):
    """Ends a training like a kill: no handler catches it."""


@pytest.mark.thorough
def test_an_interrupted_training_resumes_with_the_same_result(base_model, data, tmp_path):
    settings = replace(QUICK, save_steps=1)
    distill(base_model, data, tmp_path / "whole", settings)

    def stop(progress):
        if progress.step == 3:
            raise Killed

    out = tmp_path / "policy"
    with pytest.raises(Killed):
        distill(base_model, data, out, settings, progress=stop)
    assert not out.exists()
    with pytest.raises(ConfigurationError, match="resume"):
        distill(base_model, data, out, settings)
    seen = []
    distill(base_model, data, out, settings, progress=lambda progress: seen.append(progress.step), resume=True)
    assert seen[0] in (3, 4)
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "policy"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert not list(tmp_path.glob(".policy*"))


def test_data_that_cannot_be_imitated_are_refused(base_model, tmp_path):
    call = Step(json.dumps({"name": "search", "args": {}}), "found", reward=1.0)
    calls = [LoggedTrajectory(Trajectory(Task(f"t{n}", "Do it."), (call,), True), 0) for n in range(4)]
    for name, records, words in (
        ("none", DATA[1::2], "nothing to imitate"),
        ("calls", calls, "expected a text agent's"),
    ):
        write_shard(tmp_path / name, records)
        with pytest.raises(ConfigurationError, match=words) as refused:
            distill(base_model, tmp_path / name, tmp_path / "out", QUICK)
        assert len(str(refused.value)) <= 400
    assert sorted(path.name for path in tmp_path.iterdir()) == ["calls", "none"]


def test_a_template_that_rewrites_earlier_turns_is_refused():
    def encode(messages):
        return [len(messages), *range(len(messages))]

    with pytest.raises(ConfigurationError, match="rewrites earlier turns"):
        rows_of([[Imitated(DATA[0].trajectory, 1.0)]], encode, {1}, system=None, limit=None)


async def test_a_search_draws_by_weight():
    """With beta far below the differences of the returns, only walks that are up most often remain."""
    search = Search("uniform", at=(2,), beta=0.01)
    assert search.settings == {"search": {"critic": "uniform", "at": [2], "beta": 0.01}}
    task, agent = Task("walk", "Walk."), text_agent(Steps())
    given = {"messages": [("user", "Walk.")]}
    options = {"horizon": 4, "seed": 0, "environment": lambda state: (Rewarded(), task)}
    drawn = await search.trajectories(agent, given, 8, **options)
    independent = await independent_trajectories(agent, given, 8, **options)
    ((found,),) = [{trajectory.return_ for trajectory in drawn}]
    assert len(drawn) == 8
    assert found > np.mean([trajectory.return_ for trajectory in independent])


@pytest.mark.thorough
def test_a_collected_search_trains_a_policy_that_plays(tmp_path, monkeypatch):
    data, out = str(tmp_path / "data"), str(tmp_path / "policy")
    collected = ["--critic", "uniform", "--resample-at", "2", "--tasks", "5", "--trajectories", "4", "--out", data]
    monkeypatch.setattr("sys.argv", ["collect", *collected])
    main()
    assert "search" in json.loads(read_records(data)[0].settings)
    done = CliRunner().invoke(COMMAND, ["--data", data, "--out", out, "--epochs", "1", "--success", "0", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["metrics"] == json.loads((tmp_path / "policy" / FILE).read_text())["metrics"]
    assert EmbeddedChatModel(model=out).invoke("Craft 1 oak planks.").text


@pytest.mark.parametrize("beta", [0, -1])
def test_a_search_needs_a_positive_beta(beta):
    with pytest.raises(ConfigurationError, match="expected a number above 0"):
        Search("uniform", beta=beta)


class Rewarded(Walk):
    """Pays 1 for each step up."""

    def __init__(self):
        super().__init__(-99)

    async def step(self, action):
        return replace(await super().step(action), reward=float(action == "up"))

    async def fork(self, seed):
        child = Rewarded()
        child.at = self.at
        return child
