"""Verdicts on a real vLLM server of the shipped policy, equal to those of numpy with the same weights.

GOOD and BAD are not in the policy's vocabulary; any two texts of its vocabulary are enough to compare the numbers.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from langchain_openai import ChatOpenAI

import amc_agents.models.embedded
from amc_agents.critics.render import DIALOGUE
from amc_agents.critics.saved import Golden
from amc_agents.critics.server.client import ModelServer
from amc_agents.critics.spec import parse_critic
from amc_agents.critics.verdict.checkpoint import STEPWISE, VerdictCheckpoint, VerdictFormat
from amc_agents.critics.verdict.critic import VerdictCritic
from amc_agents.critics.verdict.reading import CompletionsReader, Spellings
from amc_agents.critics.verdict.top_k import TopKReader
from amc_agents.errors import CheckpointError
from amc_agents.models.embedded.llama import NumpyLlama
from amc_agents.models.tokenizers import WordTokenizer
from amc_agents.testing import check_critic
from amc_agents.types import Step, Task, Trajectory

pytestmark = pytest.mark.service

POLICY = Path(amc_agents.models.embedded.__path__[0]) / "crafting"
ITEMS = [" clay", " silk", " coal", " sand", " wax", " moss", " salt", " ash", " fur", " mud"]
TOLERANCE = 1e-4
BLOCK = 32
# Words with several spellings of several tokens, and words of a single token.
LONG = ("craft 1 oak gate", "get 2 clay")
SHORT = ("Thought:", "Action:")
CHAT = VerdictFormat(DIALOGUE, "")
"""The policy's chat format; the verdict is the beginning of its next message."""


def trajectory(steps: int, seed: int = 0) -> Trajectory:
    items = np.random.default_rng(seed).permutation(ITEMS)
    recipe = f"Crafting commands:\ncraft 1 oak gate using 2{items[0]}, 1{items[1]}\n\nGoal: craft oak gate."
    fetched = (Step(f"get {n % 9}{items[n % 10]}", f"Got {n % 9}{items[n % 10]}") for n in range(steps))
    return Trajectory(Task("t", recipe), tuple(fetched))


@pytest.fixture(scope="module")
def policy():
    return NumpyLlama.load(POLICY), WordTokenizer.from_folder(POLICY)


def by_hand(policy, texts, words) -> list[float]:
    """Compute the log-probability of each word after a prompt: every spelling of known tokens, in one pass each."""
    model, tokenizer = policy
    prompt = [token for text in texts for token in tokenizer.encode(text)]
    log_probabilities = []
    for word in words:
        spellings = {tuple(tokenizer.encode(text)) for text in (word, f" {word}")}
        paths = []
        for ids in (ids for ids in spellings if tokenizer.vocabulary["<unk>"] not in ids):
            tokens = np.array([*prompt, *ids])
            hidden = model.forward(tokens, np.array([len(tokens)]), model.new_rows(), 0)
            logits = model.logits(hidden.reshape(len(tokens), -1)).astype(np.float64)
            table = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
            paths.append(sum(table[len(prompt) + place - 1, token] for place, token in enumerate(ids)))
        log_probabilities.append(float(np.logaddexp.reduce(paths)))
    return log_probabilities


def critic_of(url: str, **settings) -> VerdictCritic:
    reader = CompletionsReader(ModelServer(url), **settings.pop("reader", {}))
    return VerdictCritic(reader, **{"prompt_format": CHAT, "words": LONG, "least_mass": 0.0, **settings})


def cached_and_all(url: str) -> np.ndarray:
    """Return the prompt tokens since the server's start: (from the cache, all)."""
    text = httpx.get(f"{url}/metrics").text
    names = ("vllm:prompt_tokens_cached_total", "vllm:prompt_tokens_total")
    return np.array([sum(map(float, re.findall(rf"^{name}{{.*}} (\S+)$", text, re.MULTILINE))) for name in names])


@pytest.mark.parametrize("words", [LONG, SHORT])
async def test_log_odds_equal_those_of_numpy(policy_url, policy, words):
    states = [trajectory(steps, seed) for seed in range(4) for steps in (0, 1, 5)]
    verdicts = await critic_of(policy_url, words=words).verdicts(states)
    expected = np.array([by_hand(policy, CHAT.prompt(state, words), words) for state in states])
    assert verdicts.log_good == pytest.approx(expected[:, 0], abs=TOLERANCE)
    assert verdicts.log_bad == pytest.approx(expected[:, 1], abs=TOLERANCE)
    assert np.ptp(verdicts.log_odds) > 0.1
    assert not verdicts.flagged.any()


async def test_an_untrained_model_needs_only_a_string(policy_url, policy):
    critic: Any = parse_critic(f"verdict:{policy_url}?words={','.join(SHORT)}&low=-1")
    past, actions = trajectory(2), ["get 1 clay", "craft 1 oak gate"]
    odds = await critic.q_values(past, actions)
    texts = [STEPWISE.prompt(past.extended(Step(action)), SHORT) for action in actions]
    pairs = np.array([by_hand(policy, prompt, SHORT) for prompt in texts])
    expected = np.where(np.exp(pairs).sum(1) < 0.05, 0.0, pairs[:, 0] - pairs[:, 1])
    assert odds == pytest.approx(expected, abs=TOLERANCE)


async def test_it_passes_the_checks_of_critics(policy_url):
    await check_critic(critic_of(policy_url), [trajectory(n) for n in (0, 1, 4)], tolerance=TOLERANCE)


@pytest.mark.parametrize(
    ("words", "question"),
    [
        (SHORT, ""),
        (SHORT, "\nGoal: Thought: or Action:?"),
        (("Got 2", "Crafted 2"), "\nGoal: Got or Crafted?"),
    ],
)
async def test_a_growing_trajectory_costs_its_new_tokens(policy_url, policy, words, question):
    """Scoring 20 states computes the final prompt's tokens once, and the question and a block for each score."""
    tokenizer, prompt_format = policy[1], VerdictFormat(DIALOGUE, question)
    critic = critic_of(policy_url, prompt_format=prompt_format, words=words)
    await critic.values([trajectory(0)])  # attaches
    # A random seed, so that the server's cache does not contain it from an earlier run.
    whole = trajectory(20, seed=int(np.random.default_rng().integers(1 << 30)))
    before = cached_and_all(policy_url)
    for steps in range(1, 21):
        await critic.values([whole.prefix(steps)])
    cached, prompts = cached_and_all(policy_url) - before
    rounds = "".join(prompt_format.prompt(whole, words)[:-1])
    tokens, question_tokens = (len(tokenizer.encode(text)) for text in (rounds, question))
    print(f"{prompts:.0f} prompt tokens, {prompts - cached:.0f} computed, {tokens} in the last prompt")
    # A row for each prefix of the words' spellings, the empty prefix included.
    prefixes = [len(ids) for ids in Spellings.of(words, tokenizer.encode).prefixes]
    bound = tokens + 20 * sum(question_tokens + length + BLOCK for length in prefixes)
    assert prompts - cached <= bound
    # The bound is informative: without the cache, all prompt tokens would be computed.
    assert prompts > 2 * bound


async def test_the_common_past_of_candidates_is_computed_once(policy_url, policy):
    past = trajectory(15, seed=int(np.random.default_rng().integers(1 << 30)))
    critic = critic_of(policy_url, words=SHORT)
    await critic.values([trajectory(0)])  # attaches
    before = cached_and_all(policy_url)
    await critic.q_values(past, [f"get {n} clay" for n in range(1, 6)])
    cached, prompts = cached_and_all(policy_url) - before
    shared = len(policy[1].encode("".join(CHAT.prompt(past, SHORT)[:-1])))
    print(f"{prompts:.0f} prompt tokens, {prompts - cached:.0f} computed, {shared} shared")
    assert prompts - cached <= shared + 5 * (10 + BLOCK)


async def test_a_trained_model_reproduces_its_golden_log_odds(policy_url, policy, tmp_path):
    shutil.copy(POLICY / "tokenizer.json", tmp_path)
    golden = []
    for steps in (0, 3):
        segments = CHAT.prompt(trajectory(steps), LONG)
        ids = tuple(token for text in segments for token in policy[1].encode(text))
        golden.append(Golden(segments, ids, float(np.subtract(*by_hand(policy, segments, LONG)))))
    right = VerdictCheckpoint(CHAT, LONG, 900, (), tuple(golden))
    right.save(tmp_path)
    critic = VerdictCritic(CompletionsReader(ModelServer(policy_url), checkpoint=tmp_path), least_mass=0.0)
    expected = by_hand(policy, CHAT.prompt(trajectory(2), LONG), LONG)
    assert await critic.log_odds([trajectory(2)]) == pytest.approx([np.subtract(*expected)], abs=TOLERANCE)
    replace(right, golden=(replace(golden[0], score=golden[0].score + 0.1), golden[1])).save(tmp_path)
    with pytest.raises(CheckpointError, match="golden log-odds differ"):
        await VerdictCritic(CompletionsReader(ModelServer(policy_url), checkpoint=tmp_path)).values([trajectory(2)])


async def test_top_tokens_of_the_chat_api_bound_the_same_log_odds(policy_url, policy):
    """The log-odds are exact if both words are reported, and never further from 0 than the true ones."""
    rounds = replace(DIALOGUE, opening="{instruction}", marker="\n", round="{turn}\n{observation}")
    prompt_format = VerdictFormat(rounds, "")
    model = ChatOpenAI(model="policy", base_url=f"{policy_url}/v1", api_key="none")
    states = [trajectory(steps) for steps in (0, 1, 3)]
    unlikely = (" oak gate", " coal")
    for words in (SHORT, unlikely):
        critic = VerdictCritic(TopKReader(model), prompt_format=prompt_format, words=words, least_mass=0.0)
        verdicts = await critic.verdicts(states)
        chats = [("<|user|>", "".join(prompt_format.prompt(state, words)), "<|assistant|>") for state in states]
        pairs = np.array([by_hand(policy, texts, words) for texts in chats])
        true = pairs[:, 0] - pairs[:, 1]
        exact = ~verdicts.flagged
        print(words, true, verdicts.log_odds, verdicts.flagged)
        assert np.all(np.abs(verdicts.log_odds) <= np.abs(true) + 0.1)
        assert np.all(verdicts.log_odds * true >= -1e-9)
        assert verdicts.log_odds[exact] == pytest.approx(true[exact], abs=0.1)
        assert critic.usage.input_tokens > 0
