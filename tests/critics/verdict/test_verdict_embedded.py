"""The shipped verdict model in numpy: equal to transformers, and better than chance."""

import json
import shutil
from typing import Any

import numpy as np
import pytest

from amc_agents.critics.spec import parse_critic
from amc_agents.critics.verdict.checkpoint import FILE, VerdictCheckpoint
from amc_agents.critics.verdict.critic import VerdictCritic
from amc_agents.critics.verdict.embedded import EmbeddedVerdictReader, export_embedded_verdict
from amc_agents.envs.crafting import generate_tasks, plan
from amc_agents.errors import CheckpointError, ConfigurationError, CriticError, CriticSpecError
from amc_agents.models.embedded import model_folder
from amc_agents.testing import check_critic
from amc_agents.types import Step, Task, Trajectory
from amc_agents.usage import Meter, metering

SHIPPED = model_folder("crafting")
NAME = "verdict:embedded:crafting"


def decisions(n_tasks):
    """For each task, its empty trajectory, the planner's first action, and a useless one."""
    for task in generate_tasks(n_tasks, "shipped", optimal_steps=(6, 12)):
        book, goal = task.payload.book, task.payload.goal
        way = plan(book, goal)
        unused = (name for name in sorted(book.raw) if not any(f" {name}" in action for action in way))
        # Items that are crafted cannot be fetched.
        useless = f"get 1 {next(unused, goal)}"
        yield Trajectory(Task(task.id, task.instruction)), way[0], useless


@pytest.fixture
def copied(tmp_path):
    folder = tmp_path / "crafting"
    shutil.copytree(SHIPPED, folder)
    return folder


async def test_it_prefers_needed_actions_to_useless_ones():
    critic: Any = parse_critic(NAME)
    gaps = []
    for past, needed, useless in decisions(20):
        good, bad = await critic.q_values(past, [needed, useless])
        gaps.append(good - bad)
    assert np.mean(np.array(gaps) > 0) >= 0.9


async def test_its_log_odds_are_those_of_transformers(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from amc_agents.training.verdict.passes import log_odds

    folder = export_embedded_verdict(SHIPPED, tmp_path / "merged")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def tokenize(text):
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    reader = EmbeddedVerdictReader(SHIPPED)
    checkpoint = await reader.prepare()
    prompts = [
        checkpoint.prompt_format.prompt(past.extended(Step(action, observation)), checkpoint.words)
        for past, *actions in decisions(4)
        for action in actions
        for observation in ("", "Got 1 clay")
    ]
    expected = [
        log_odds(model, [token for text in prompt for token in tokenize(text)], checkpoint.words, tokenize)
        for prompt in prompts
    ]
    actual = (await reader.read(prompts, checkpoint.words)).log_odds
    assert np.ptp(expected) > 1
    np.testing.assert_allclose(actual, expected, atol=1e-5 * np.abs(expected).max())


async def test_it_passes_the_checks_of_critics_and_caches_the_past():
    critic: Any = parse_critic(NAME)
    past, needed, useless = next(decisions(1))
    await check_critic(critic, [past.extended(Step(action, "Got 1 clay")) for action in (needed, useless)])
    critic = parse_critic(NAME)
    meter = Meter()
    with metering(meter):
        await critic.q_values(past, [needed, useless])
        await critic.q_values(past, [needed, "inventory"])
    assert critic.usage.calls == 4
    assert critic.usage.cached_tokens > 0.7 * critic.usage.input_tokens


async def test_a_long_attempt_loses_its_oldest_rounds_and_a_long_task_is_refused(copied):
    path = copied / "verdict" / FILE
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"max_tokens": 250, "golden": []}))
    critic = VerdictCritic(EmbeddedVerdictReader(copied))
    past, needed, _ = next(decisions(1))
    rounds = tuple(Step(f"get {n % 9} clay", "Got 1 clay") for n in range(40))
    long = Trajectory(past.task, rounds)
    (q,) = await critic.q_values(long, [needed])
    assert np.isfinite(q)
    with pytest.raises(CriticError, match="the critic's limit is"):
        await critic.q_values(Trajectory(Task("t", past.task.instruction * 9)), [needed])


async def test_other_weights_are_refused(copied):
    path = copied / "verdict" / FILE
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"base_model_hash": "other"}))
    with pytest.raises(CheckpointError, match="trained on other weights"):
        EmbeddedVerdictReader(copied)
    values["golden"][0]["log_odds"] += 1.0
    path.write_text(json.dumps(values))
    past, needed, _ = next(decisions(1))
    with pytest.raises(CheckpointError, match="golden log-odds differ"):
        await VerdictCritic(EmbeddedVerdictReader(copied)).q_values(past, [needed])


def test_options_of_its_string():
    doubled: Any = parse_critic(f"{NAME}?high=2")
    assert doubled.returns == (0.0, 2.0)
    with pytest.raises(CriticSpecError, match="timeout"):
        parse_critic(f"{NAME}?timeout=3")
    with pytest.raises(CheckpointError, match="no embedded model"):
        parse_critic("verdict:embedded:other")


def test_an_export_is_complete(tmp_path):
    folder = export_embedded_verdict(SHIPPED, tmp_path / "merged")
    names = {FILE, "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert {path.name for path in folder.iterdir()} == names
    assert VerdictCheckpoint.load(folder) == VerdictCheckpoint.load(SHIPPED / "verdict")
    with pytest.raises(ConfigurationError, match="is not empty"):
        export_embedded_verdict(SHIPPED, folder)
