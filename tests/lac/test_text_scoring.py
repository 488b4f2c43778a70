"""Log-likelihoods of given texts. The server is scripted: it answers as vLLM does, by the embedded model."""

from __future__ import annotations

import itertools
import json
import re

import httpx
import numpy as np
import pytest
from langchain_core.messages import HumanMessage

from amc_agents.critics.server.client import ModelServer
from amc_agents.envs.crafting import generate_tasks
from amc_agents.errors import ConfigurationError, CriticError, CriticServerError
from amc_agents.lac.improvement import over_thoughts
from amc_agents.lac.text_scoring import ChatRescorer, EmbeddedScorer, Text, written
from amc_agents.lac.vllm_text_scorer import CompletionsScorer
from amc_agents.messages import split_turn
from amc_agents.models.embedded import EmbeddedChatModel, NumpyLlama, WordTokenizer, model_folder
from amc_agents.models.engine import log_softmax
from amc_agents.usage import Meter, metering
from tests.variants import variants

MODEL = NumpyLlama.load(model_folder("crafting"))
TOKENIZER = WordTokenizer.from_folder(model_folder("crafting"))


def user(text):
    return [{"role": "user", "content": text}]


DIALOGUE = [{"role": "user", "content": "Crafting commands:\ncraft 1 oak gate using 2 clay, 1 silk\n\nGoal: oak gate."}]
THOUGHTS, ACTIONS = ["oak gate using 2 clay", ""], ["get 2 clay", "get 1 silk", "inventory"]


def table(ids):
    """Return `[tokens, V]` logits of the next token."""
    tokens = np.array(ids)
    return MODEL.logits(MODEL.forward(tokens, np.array([len(tokens)]), MODEL.new_rows(), 0)).astype(np.float64)


def by_hand(thought, action, temperature):
    given = f"Thought: {thought}\nAction:" if thought else "Action:"
    prompt = TOKENIZER.encode_chat([("user", DIALOGUE[0]["content"])]) + TOKENIZER.encode(given)
    scored = [*TOKENIZER.encode(f" {action}"), TOKENIZER.end_id]
    logits = log_softmax(table(prompt + scored) / temperature)
    return sum(logits[len(prompt) + i - 1, token] for i, token in enumerate(scored))


class Server:
    """A server that answers as vLLM, by the embedded model; `edit` may change an answer."""

    def __init__(self, most=20, edit=None):
        self.most, self.edit, self.bodies = most, edit or (lambda path, answer: answer), []

    def __call__(self, request):
        path = request.url.path
        if path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "policy"}]})
        body = json.loads(request.content)
        self.bodies.append((path, body))
        if path == "/tokenize":
            answer = {"tokens": self.tokens(body)}
        elif body["prompt_logprobs"] > self.most or (body["prompt_logprobs"] == -1 and self.most != 999):
            return httpx.Response(400, json={"error": {"message": "greater than max allowed"}})
        else:
            choices = [
                {"index": i, "prompt_logprobs": self.places(ids, body["prompt_logprobs"])}
                for i, ids in enumerate(body["prompt"])
            ]
            answer = {"choices": choices[::-1], "usage": {"prompt_tokens": 100, "completion_tokens": len(choices)}}
        return httpx.Response(200, json=self.edit(path, answer))

    def tokens(self, body):
        if "prompt" in body:
            return TOKENIZER.encode(body["prompt"])
        turns = [(one["role"], one["content"]) for one in body["messages"]]
        return TOKENIZER.encode_chat(turns, add_generation_prompt=body["add_generation_prompt"])

    def places(self, ids, top):
        found = [None]
        for logprobs, token in zip(log_softmax(table(ids)), ids[1:], strict=False):
            order = np.argsort(-logprobs)
            rank = {int(one): place for place, one in enumerate(order, 1)}
            shown = dict.fromkeys([token, *map(int, order[: len(order) if top == -1 else top])])
            found.append({str(one): {"logprob": float(logprobs[one]), "rank": rank[one]} for one in shown})
        return found

    def scorer(self, **settings):
        return CompletionsScorer(
            ModelServer("http://policy", transport=httpx.MockTransport(self), retry_for=0), **settings
        )


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.6])
async def test_the_embedded_model_scores_a_text_as_by_hand_at_any_temperature(temperature):
    found = await ChatRescorer(EmbeddedScorer.load(), DIALOGUE, temperature=temperature).log_likelihoods(
        THOUGHTS, ACTIONS
    )
    expected = [[by_hand(thought, action, temperature) for action in ACTIONS] for thought in THOUGHTS]
    assert np.ptp(expected) > 1
    assert found == pytest.approx(np.array(expected), abs=1e-4)


async def test_the_server_gives_the_same_at_temperature_1_in_one_request():
    server, meter = Server(), Meter()
    with metering(meter):
        found = await ChatRescorer(server.scorer(), DIALOGUE).log_likelihoods(THOUGHTS, ACTIONS)
    expected = await ChatRescorer(EmbeddedScorer.load(), DIALOGUE).log_likelihoods(THOUGHTS, ACTIONS)
    assert found == pytest.approx(expected, abs=1e-4)
    (asked,) = [body for path, body in server.bodies if path == "/v1/completions"]
    assert (len(asked["prompt"]), asked["prompt_logprobs"], asked["temperature"]) == (6, 0, 1.0)
    assert meter.by_model()["policy"]["policy"].calls == 1


async def test_texts_are_split_over_requests_above_the_batch_and_tokenized_once():
    server = Server()
    scorer = server.scorer(max_batch=4)
    for _ in range(2):
        found = await ChatRescorer(scorer, DIALOGUE).log_likelihoods(THOUGHTS, ACTIONS)
    expected = await ChatRescorer(EmbeddedScorer.load(), DIALOGUE).log_likelihoods(THOUGHTS, ACTIONS)
    assert found == pytest.approx(expected, abs=1e-4)
    assert [len(body["prompt"]) for path, body in server.bodies if path == "/v1/completions"] == [4, 2, 4, 2]
    # 6 whole texts, 2 thoughts, the probe of the end token and the dialogue that holds it; then the dialogue alone.
    assert [path for path, _ in server.bodies].count("/tokenize") == 2 + 1 + 8 + 1


@pytest.mark.thorough
@pytest.mark.parametrize("temperature", [0.5, 0.8, 1.3])
async def test_with_all_tokens_it_is_exact_at_any_temperature(temperature):
    scorer = Server(most=999).scorer(top=-1, tolerance=1e-9)
    found = await ChatRescorer(scorer, DIALOGUE, temperature=temperature).log_likelihoods(THOUGHTS, ACTIONS)
    expected = [[by_hand(thought, action, temperature) for action in ACTIONS] for thought in THOUGHTS]
    assert found == pytest.approx(np.array(expected), abs=1e-4)


@variants(("temperature", "top"), [(0.3, 5), (0.5, 20), (0.7, 20), (0.8, 20)])
async def test_below_temperature_1_the_likeliest_tokens_give_it_within_half_the_tolerance(temperature, top):
    rescorer = ChatRescorer(Server().scorer(top=top, tolerance=0.05), DIALOGUE, temperature=temperature)
    found = await rescorer.log_likelihoods(THOUGHTS, ACTIONS)
    expected = [[by_hand(thought, action, temperature) for action in ACTIONS] for thought in THOUGHTS]
    assert found == pytest.approx(np.array(expected), abs=0.025 + 1e-4)


async def test_likelihoods_with_wide_bounds_are_refused_and_the_bounds_hold():
    rescorer = ChatRescorer(Server().scorer(top=2, tolerance=0.0), DIALOGUE, temperature=0.8)
    for thought, action in itertools.product(THOUGHTS, ACTIONS):
        with pytest.raises(CriticError, match="only known to lie between") as refused:
            await rescorer.log_likelihoods([thought], [action])
        least, most = map(float, re.findall(r"-\d+\.\d+", str(refused.value))[:2])
        assert least < by_hand(thought, action, 0.8) < most


async def test_settings_that_do_not_determine_a_likelihood_are_refused():
    with pytest.raises(CriticError, match="--max-logprobs -1"):
        await Server().scorer().log_likelihoods(DIALOGUE, [Text("", "inventory")], 1.1)
    with pytest.raises(CriticServerError, match="max allowed"):
        await Server().scorer(top=-1).log_likelihoods(DIALOGUE, [Text("", "inventory")], 1.1)
    for scorer in (Server().scorer(), EmbeddedScorer.load()):
        for temperature in (0.0, -1.0, float("nan")):
            with pytest.raises(ConfigurationError, match="above 0"):
                await scorer.log_likelihoods(DIALOGUE, [Text("", "inventory")], temperature)
        assert len(await scorer.log_likelihoods(DIALOGUE, [], 1.0)) == 0


async def test_a_template_that_writes_answers_differently_needs_the_end_token():
    class Thinking(Server):
        def tokens(self, body):
            found = super().tokens(body)
            answered = "messages" in body and not body["add_generation_prompt"]
            return [*found[:-3], 5, *found[-3:]] if answered else found

    with pytest.raises(CriticError, match="end_token="):
        await Thinking().scorer().log_likelihoods(DIALOGUE, [Text("", "inventory")], 1.0)
    given = Thinking().scorer(end_token=TOKENIZER.end_id)
    found = await given.log_likelihoods(DIALOGUE, [Text("", "inventory")], 1.0)
    assert found == pytest.approx(
        await EmbeddedScorer.load().log_likelihoods(DIALOGUE, [Text("", "inventory")], 1.0), abs=1e-4
    )


def lost(path, answer):
    return answer if path == "/tokenize" else {"choices": answer["choices"][:1]}


def other_server(path, answer):
    return answer if path == "/tokenize" else {"choices": [{"index": 0, "text": "hello"}]}


def no_tokens(path, answer):
    return {}


def short(path, answer):
    for choice in answer.get("choices", []):
        choice["prompt_logprobs"] = choice["prompt_logprobs"][:-1]
    return answer


def other_tokens(path, answer):
    for choice in answer.get("choices", []):
        choice["prompt_logprobs"][-1] = {"0": {"logprob": -1.0, "rank": 1}}
    return answer


def overwritten(path, answer):
    for choice in answer.get("choices", []):
        for place in choice["prompt_logprobs"][-1].values():
            place["logprob"] = -9999.0
    return answer


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (overwritten, "vLLM 0.32 writes -9999"),
        (lost, "expected 2 rows in `choices`, got 1"),
        (other_server, "Is it a vLLM server"),
        (no_tokens, "/tokenize"),
        (short, "prompt_logprobs, got"),
        (other_tokens, "no log-probability of token"),
    ],
)
async def test_malformed_answers_are_errors(edit, said):
    with pytest.raises(CriticServerError, match=said):
        await Server(edit=edit).scorer().log_likelihoods(DIALOGUE, [Text("", "get"), Text("", "inventory")], 1.0)


def test_texts_of_one_thought_are_scored_from_the_same_token_on():
    texts = [Text("ab", "c"), Text("ab", "d"), Text("", "ab")]
    ids = {"ab": [1, 2], "abc": [1, 2, 3], "abd": [1, 9]}
    # `bd` is a single token here: the shared prefix ends before it.
    assert written(texts, ids, 0) == [((1, 2, 3, 0), 1), ((1, 9, 0), 1), ((1, 2, 0), 0)]


async def test_a_text_beyond_the_context_is_refused():
    long = [{"role": "user", "content": " clay" * MODEL.config.context}]
    with pytest.raises(ConfigurationError, match="this model reads"):
        await EmbeddedScorer.load().log_likelihoods(long, [Text("", "inventory")], 1.0)


@pytest.mark.thorough
@pytest.mark.parametrize("temperature", [0.7, 1.0])
async def test_over_many_sampled_turns_the_mean_over_thoughts_is_the_frequency(temperature):
    (task,) = generate_tasks(1, "shipped")
    answers = [
        answer
        for seed in range(4)
        for answer in (
            await EmbeddedChatModel(temperature=temperature, n=100, seed=seed).agenerate(
                [[HumanMessage(task.instruction)]]
            )
        ).generations[0]
    ]
    thoughts, actions = zip(*(split_turn(one.text) for one in answers), strict=True)
    assert len(set(thoughts)) > 2
    distinct = list(dict.fromkeys(actions))
    rescorer = ChatRescorer(EmbeddedScorer.load(), user(task.instruction), temperature=temperature)
    found = np.exp(await over_thoughts(thoughts, distinct, rescorer))
    frequency = np.array([actions.count(action) for action in distinct]) / len(actions)
    assert found == pytest.approx(frequency, abs=4 * np.sqrt(0.25 / len(actions)))
    # Nearly all that the policy does after these thoughts was sampled.
    assert 0.9 < found.sum() < 1.0 + 1e-6
