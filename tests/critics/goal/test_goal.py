from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from amc_agents.critics.goal.checkpoint import (
    FILE,
    Calibration,
    GoalCheckpoint,
    GoalNetwork,
    GoldenTriple,
    fit_calibration,
)
from amc_agents.critics.goal.critic import ChatSummary, Described, GoalValueCritic, as_summary
from amc_agents.critics.goal.embeddings import (
    CachedEmbeddings,
    DiskCache,
    Embedded,
    HashedWords,
    LangChainEmbeddings,
    ServerEmbeddings,
    as_embeddings,
)
from amc_agents.critics.server.client import ModelServer
from amc_agents.critics.spec import parse_critic
from amc_agents.errors import (
    CheckpointError,
    ConfigurationError,
    CriticError,
    CriticServerError,
    CriticSpecError,
    MissingExtra,
)
from amc_agents.files import replace_file
from amc_agents.types import GoalCritic, Step, Task, Trajectory
from amc_agents.usage import Meter, Usage, metering

STATE = Trajectory(Task("t", "find the key"), (Step("open", "a box", "look inside"),))
GOALS = ["the key is found", "the box is locked", "nothing happens"]
GOLDEN = [("find the key", "look around", "a box"), ("a box", "open it", "the key is found")]


def network(dimensions: int, seed: int = 0, *, twin: bool = False) -> GoalNetwork:
    rng, weights = np.random.default_rng(seed), {}
    for name, parts in {"q": 3, "v": 2, **({"q2": 3} if twin else {})}.items():
        for layer, (inputs, outputs) in enumerate([(parts * dimensions + parts - 1, 8), (8, 8), (8, 1)]):
            weights[f"{name}.{layer}.weight"] = rng.normal(0, 0.3, (outputs, inputs)).astype(np.float32)
            weights[f"{name}.{layer}.bias"] = rng.normal(0, 0.3, outputs).astype(np.float32)
        # Scores that differ, and lie within [0, 1].
        weights[f"{name}.2.weight"] *= 0.1
        weights[f"{name}.2.bias"][:] = 0.5
    return GoalNetwork(weights, scale=float(dimensions**0.5))


async def checkpoint_for(embeddings, dimensions: int, **changes) -> GoalCheckpoint:
    untrained = network(dimensions)
    texts = [text for triple in GOLDEN for text in triple]
    vectors = (await embeddings.embed(texts)).vectors.reshape(len(GOLDEN), 3, dimensions)
    scores = untrained.q(vectors[:, 0], vectors[:, 1], vectors[:, 2])
    golden = tuple(GoldenTriple(*triple, float(q)) for triple, q in zip(GOLDEN, scores, strict=True))
    checkpoint = GoalCheckpoint(untrained, dimensions, embeddings.spec, "none", golden, vectors)
    return replace(checkpoint, **changes)


class Counting:
    """Hashed words that record their requests, and whose model can change."""

    spec = "hashed:64"

    def __init__(self, dimensions=64):
        self.requests, self.interruptions, self.changed = [], 0, False
        self._hashed = HashedWords(dimensions)

    async def embed(self, texts):
        self.requests.append(list(texts))
        vectors = (await self._hashed.embed(texts)).vectors
        return Embedded(np.roll(vectors, 1, axis=1) if self.changed else vectors, Usage(1, 10 * len(texts)))


async def test_reach_embeds_in_one_batch_and_caches_texts():
    embeddings = Counting()
    critic = GoalValueCritic(await checkpoint_for(HashedWords(64), 64), embeddings=embeddings)
    assert isinstance(critic, GoalCritic)
    meter = Meter()
    with metering(meter):
        first = await critic.reach(STATE, "try the lock", GOALS)
        again = await critic.reach(STATE, "try the lock", GOALS[::-1])
        other = await critic.reach(STATE, "go home", [GOALS[1], GOALS[1], "the key is gone"])
    assert first.shape == (3,)
    assert np.all((first >= 0) & (first <= 1))
    # A row's last digits depend on its place in the batch.
    assert again == pytest.approx(first[::-1], rel=1e-5)
    assert other[0] == pytest.approx(other[1], rel=1e-5)
    assert other[2] != pytest.approx(other[1], rel=1e-3)
    assert [len(request) for request in embeddings.requests] == [9, 2]
    assert meter.by_model() == {"critic": {"hashed:64": critic.usage}}
    assert critic.usage == Usage(2, 110)
    assert (await critic.reach(STATE, "wait", [])).shape == (0,)


async def test_one_goal_at_a_time_gives_the_same_as_all_at_once():
    critic = GoalValueCritic(await checkpoint_for(HashedWords(64), 64))
    together = await critic.reach(STATE, "try", GOALS)
    alone = [(await critic.reach(STATE, "try", [goal]))[0] for goal in GOALS]
    assert together == pytest.approx(alone, abs=1e-6)
    assert len(set(alone)) == 3


async def test_the_cache_of_texts_is_bounded():
    embeddings = Counting()
    critic = GoalValueCritic(await checkpoint_for(HashedWords(64), 64), embeddings=embeddings, remembered=3)
    await critic.reach(STATE, "try", ["one"])
    await critic.reach(STATE, "try", ["two"])
    await critic.reach(STATE, "try", ["one"])
    assert [len(request) for request in embeddings.requests[1:]] == [1, 1]


async def test_the_minimum_of_twin_networks_is_used():
    both, rng = network(8, twin=True), np.random.default_rng(0)
    both.weights["q2.2.weight"][:] *= -1
    rows = [rng.normal(size=(20, 8)).astype(np.float32) for _ in range(3)]
    first = GoalNetwork({key: value for key, value in both.weights.items() if not key.startswith("q2")}, both.scale)
    second = {key.replace("q2.", "q."): value for key, value in both.weights.items() if not key.startswith("q.")}
    expected = np.minimum(first.q(*rows), GoalNetwork(second, both.scale).q(*rows))
    assert both.q(*rows) == pytest.approx(expected)
    assert (expected < first.q(*rows)).any()
    assert (expected == first.q(*rows)).any()


class Restarting(Counting):
    """Restarts within a call, with another model or the same."""

    def __init__(self, other):
        super().__init__()
        self.other = other

    async def embed(self, texts):
        if len(self.requests) == 1:
            self.interruptions, self.changed = 1, self.other
        return await super().embed(texts)


@pytest.mark.parametrize("other", [False, True])
async def test_vectors_of_a_model_that_came_within_the_call_are_checked(other):
    embeddings = Restarting(other)
    critic = GoalValueCritic(await checkpoint_for(HashedWords(64), 64), embeddings=embeddings)
    expected = await GoalValueCritic(await checkpoint_for(HashedWords(64), 64)).reach(STATE, "wait", GOALS)
    await critic.reach(STATE, "try", GOALS)
    if other:
        with pytest.raises(CheckpointError, match="the embedding model has changed"):
            await critic.reach(STATE, "wait", GOALS)
    else:
        assert await critic.reach(STATE, "wait", GOALS) == pytest.approx(expected, abs=1e-6)


async def test_a_failed_embedding_counts_as_a_call_without_usage():
    class Failing(Counting):
        async def embed(self, texts):
            raise CriticError("down")

    critic = GoalValueCritic(await checkpoint_for(HashedWords(64), 64), embeddings=Failing())
    with pytest.raises(CriticError, match="down"):
        await critic.reach(STATE, "try", GOALS)
    assert critic.usage == Usage(calls=1, missing=1)


async def test_a_changed_embedding_model_is_an_error():
    checkpoint, embeddings = await checkpoint_for(HashedWords(64), 64), Counting()
    critic = GoalValueCritic(checkpoint, embeddings=embeddings)
    await critic.reach(STATE, "try", GOALS)
    # Another model at the same URL is detected after an interruption.
    embeddings.changed, embeddings.interruptions = True, 1
    with pytest.raises(CheckpointError, match="the embedding model has changed"):
        await critic.reach(STATE, "try", GOALS)
    with pytest.raises(CheckpointError, match="expected embeddings of 64 dimensions, got 32: use hashed:64"):
        await GoalValueCritic(checkpoint, embeddings="hashed:32").reach(STATE, "try", GOALS)
    longer = replace(checkpoint, golden_vectors=2 * checkpoint.golden_vectors)
    with pytest.raises(CheckpointError, match="golden scores differ"):
        longer.check(longer.golden_vectors, "here")


async def test_a_saved_checkpoint_gives_the_same_scores(tmp_path):
    calibration = Calibration((0.0, 1.0), (0.0, 0.25))
    saved = await checkpoint_for(HashedWords(64), 64, calibration=calibration, settings={"seed": 3}, prompt=None)
    saved.save(tmp_path)
    plain = GoalValueCritic(replace(saved, calibration=None))
    critic: Any = parse_critic(f"goal:{tmp_path}")
    assert str(critic.name) == f"goal:{tmp_path}"
    assert critic.checkpoint.settings == {"seed": 3}
    q = await plain.reach(STATE, "try", GOALS)
    assert (await critic.reach(STATE, "try", GOALS)).tolist() == (0.25 * q).tolist()
    assert not hasattr(critic, "values")


async def test_a_checkpoint_is_written_atomically(tmp_path, monkeypatch):
    import amc_agents.critics.goal.checkpoint as module

    old = await checkpoint_for(HashedWords(64), 64, settings={"old": True})
    old.save(tmp_path)
    new = replace(old, network=network(64, seed=1), settings={"old": False})
    new = replace(new, golden=tuple(replace(triple, q=0.0) for triple in new.golden))
    written = replace_file

    def dies_at_the_json(path, content):
        if path.name == FILE:
            raise KeyboardInterrupt
        written(path, content)

    monkeypatch.setattr(module, "replace_file", dies_at_the_json)
    with pytest.raises(KeyboardInterrupt):
        new.save(tmp_path)
    assert GoalCheckpoint.load(tmp_path).settings == {"old": True}
    monkeypatch.undo()
    old.save(tmp_path)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".safetensors"]


async def test_a_damaged_checkpoint_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"does not exist: expected a folder that `amc train goal` wrote"):
        GoalCheckpoint.load(tmp_path)
    (await checkpoint_for(HashedWords(64), 64)).save(tmp_path)
    [weights] = tmp_path.glob("*.safetensors")
    content = weights.read_bytes()
    weights.write_bytes(content[:-4] + b"\0\0\0\0")
    with pytest.raises(CheckpointError, match="is damaged"):
        GoalCheckpoint.load(tmp_path)
    weights.write_bytes(content)
    values = json.loads((tmp_path / FILE).read_text())
    for change, message in ({"version": 2}, "version 2"), ({"golden": 3}, "not a goal checkpoint"):
        (tmp_path / FILE).write_text(json.dumps(values | change))
        with pytest.raises(CheckpointError, match=message):
            GoalCheckpoint.load(tmp_path)
    values["golden"][0][3] += 0.01
    (tmp_path / FILE).write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="golden scores differ"):
        GoalCheckpoint.load(tmp_path)


async def test_states_are_described_as_in_training(tmp_path):
    checkpoint = await checkpoint_for(HashedWords(64), 64, summary="function:short")
    checkpoint.save(tmp_path)

    def short(trajectory):
        return trajectory.steps[-1].observation

    critic = GoalValueCritic(tmp_path, summary=short_named("short", short))
    assert (await critic.reach(STATE, "try", GOALS)).shape == (3,)
    with pytest.raises(CriticSpecError, match="the same as in the critic's training"):
        GoalValueCritic(tmp_path)
    with pytest.raises(CheckpointError, match=r"trained on states described by 'function:short'.*got summary='none'"):
        parse_critic(f"goal:{tmp_path}?summary=none")


def short_named(name, function):
    function.__qualname__ = name
    return function


async def test_a_critic_string_can_name_the_embedding_server(tmp_path):
    (await checkpoint_for(HashedWords(64), 64)).save(tmp_path)
    critic: Any = parse_critic(
        f"goal:{tmp_path}?embeddings=vllm:http://host:8002?model=org/name&key_env=MY_KEY&timeout=5"
    )
    assert critic._embeddings.spec == "vllm:http://host:8002?model=org/name"
    for spec, message in {
        f"goal:{tmp_path}?device=cpu": "has no option 'device'",
        f"goal:{tmp_path}?embeddings=vllm:http://host:8002": "name no model",
        f"goal:{tmp_path}?embeddings=hashed:many": "positive integer",
        f"goal:{tmp_path}?embeddings=noprovider:x": "invalid embeddings",
        f"goal:{tmp_path}?embeddings=object:X": "pass it again",
        "goal:": "needs a target",
    }.items():
        with pytest.raises(CriticSpecError, match=message):
            parse_critic(spec)


# ---------------------------------------------------------------- embeddings


async def test_hashed_words_count_words_and_adjacent_pairs():
    texts = ["Got 1 oak log", "got 1 OAK log!", "log oak 1 got", "a zebra", ""]
    vectors, usage = await HashedWords(256).embed(texts)
    same, upper, shuffled, other, empty = vectors
    assert usage == Usage()
    assert np.array_equal(same, upper)
    assert np.linalg.norm(same) == pytest.approx(1.0, abs=1e-6)
    assert not empty.any()
    assert same @ other < same @ shuffled < 0.99
    # Pinned, because it must be the same on every machine.
    assert np.flatnonzero((await HashedWords(16).embed(["oak"])).vectors[0]).tolist() == [9]


def served(answer) -> ServerEmbeddings:
    """Embeddings over a server whose answer to a batch is `answer(batch)`."""

    def handle(request):
        body = json.loads(request.content)
        assert (request.url.path, body["model"]) == ("/v1/embeddings", "m")
        return answer(body["input"])

    server = ModelServer("http://host", transport=httpx.MockTransport(handle), retry_for=0)
    return ServerEmbeddings(server, "m", batch_size=2)


async def test_batches_of_a_server_may_have_rows_in_any_order():
    def answer(batch):
        data = [{"index": i, "embedding": [float(text), 1.0]} for i, text in enumerate(batch)]
        return httpx.Response(200, json={"data": data[::-1], "usage": {"prompt_tokens": len(batch)}})

    vectors, usage = await served(answer).embed(["3", "1", "2"])
    assert vectors.tolist() == [[3, 1], [1, 1], [2, 1]]
    assert usage == Usage(calls=2, input_tokens=3)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"data": [{"index": 0, "embedding": [1.0]}]}, "expected 2 rows in `data`, got 1"),
        ({"data": [{"index": i, "embedding": [None]} for i in range(2)]}, "expected a list of numbers as `embedding`"),
        ({"data": [{"index": i, "embedding": [1.0] * (i + 1)} for i in range(2)]}, r"expected \[2, D\] numbers"),
        ({"data": [{"index": i, "embedding": [1e39]} for i in range(2)]}, "expected finite numbers"),
        ({"data": [{"index": i, "embedding": [True]} for i in range(2)]}, "expected a list of numbers"),
        ({"data": [{"index": i} for i in range(2)]}, "expected a list of numbers"),
    ],
)
async def test_an_invalid_answer_of_a_server_is_an_error(data, message):
    with pytest.raises(CriticError, match=message):
        await served(lambda batch: httpx.Response(200, json=data)).embed(["a", "b"])


@pytest.mark.parametrize(
    "usage", [None, [1], {}, {"prompt_tokens": "3"}, {"prompt_tokens": True}, {"prompt_tokens": -1}]
)
async def test_an_answer_without_valid_usage_counts_as_missing(usage):
    data = [{"index": i, "embedding": [1.0]} for i in range(2)]
    embedded = await served(lambda batch: httpx.Response(200, json={"data": data, "usage": usage})).embed(["a", "b"])
    assert embedded.usage == Usage(calls=1, missing=1)


async def test_an_error_of_the_server_shows_its_message():
    refusal = {"error": {"message": "maximum context length is 512 tokens"}}
    with pytest.raises(CriticServerError, match="maximum context length"):
        await served(lambda batch: httpx.Response(400, json=refusal)).embed(["long"])


async def test_langchain_embeddings():
    embeddings = as_embeddings(DeterministicFakeEmbedding(size=12))
    assert isinstance(embeddings, LangChainEmbeddings)
    assert embeddings.spec == "object:DeterministicFakeEmbedding:"
    vectors, usage = await embeddings.embed(["a", "b"])
    assert vectors.shape == (2, 12)
    assert usage == Usage(calls=1, missing=1)
    checkpoint = await checkpoint_for(embeddings, 12)
    critic = GoalValueCritic(checkpoint, embeddings=DeterministicFakeEmbedding(size=12))
    assert (await critic.reach(STATE, "try", GOALS)).shape == (3,)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    with pytest.raises(MissingExtra, match="pip install sentence-transformers"):
        as_embeddings("sentence-transformers:some/model")


async def test_each_text_is_embedded_once_per_model(tmp_path):
    path, counting = tmp_path / "deep" / "cache.sqlite", Counting()
    first = await CachedEmbeddings(counting, path, chunk=2).embed(["a", "b", "a", "c"])
    assert counting.requests == [["a", "b"], ["c"]]
    again = await CachedEmbeddings(counting, path).embed(["c", "a", "d"])
    assert counting.requests[2:] == [["d"]]
    assert np.array_equal(again.vectors[:2], first.vectors[[3, 0]])
    assert again.usage == Usage(1, 10)
    other = Counting(8)
    other.spec = "hashed:8"
    assert (await CachedEmbeddings(other, path).embed(["a"])).vectors.shape == (1, 8)


def test_another_file_is_refused_as_a_cache(tmp_path):
    (tmp_path / "cache.sqlite").write_bytes(b"something else" * 100)
    with pytest.raises(CheckpointError, match="cannot be used as a cache"):
        DiskCache(tmp_path / "cache.sqlite", "x").get(["a"])
    with pytest.raises(CheckpointError, match="cannot be used as a cache"):
        DiskCache(tmp_path / "cache.sqlite" / "below-a-file", "x").get(["a"])


# ---------------------------------------------------------------- summaries


class Scribe(BaseChatModel):
    """Answers the length of the prompt; fails if the prompt contains `bad`."""

    prompts: list
    bad: str = "never"

    @property
    def _llm_type(self):
        return "scribe"

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        text = messages[0].text
        self.prompts.append(text)
        if self.bad in text:
            raise ConnectionError("the model is gone")
        usage = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
        answer = AIMessage("" if "silence" in text else f"{len(text)} characters", usage_metadata=usage)
        return ChatResult(generations=[ChatGeneration(message=answer)])


async def test_a_chat_model_summarises_each_history_once(tmp_path):
    model = Scribe(prompts=[])
    summary = ChatSummary(model, cache=tmp_path / "cache.sqlite", prompt="{trajectory}")
    states, goals, usage = await summary.describe([STATE, STATE.prefix(0), STATE])
    assert states == goals
    assert states[1] == "12 characters"
    assert states[0] == states[2] != states[1]
    assert usage == Usage(2, 10, 4)
    again = ChatSummary(Scribe(prompts=[]), cache=tmp_path / "cache.sqlite", prompt="{trajectory}")
    assert (await again.describe([STATE])).usage == Usage()
    other = ChatSummary(Scribe(prompts=[]), cache=tmp_path / "cache.sqlite", prompt="{trajectory}!")
    assert (await other.describe([STATE])).usage == Usage(1, 5, 2)


async def test_summaries_before_a_failure_are_cached(tmp_path):
    states = [Trajectory(Task(str(n), f"task {n}")) for n in range(6)]
    broken = ChatSummary(Scribe(prompts=[], bad="task 4"), cache=tmp_path / "c.sqlite", n_concurrent=1)
    with pytest.raises(CriticError, match="failed: ConnectionError: the model is gone"):
        await broken.describe(states)
    model = Scribe(prompts=[])
    await ChatSummary(model, cache=tmp_path / "c.sqlite").describe(states)
    # The last request may have started before the failure.
    assert {re.search(r"task \d", text)[0] for text in model.prompts} | {"task 5"} == {"task 4", "task 5"}


async def test_an_empty_summary_and_a_prompt_without_the_history_are_errors():
    with pytest.raises(CriticError, match="got an empty answer"):
        await ChatSummary(Scribe(prompts=[])).describe([Trajectory(Task("t", "silence"))])
    with pytest.raises(CriticSpecError, match=re.escape("no {trajectory}")):
        ChatSummary(Scribe(prompts=[]), prompt="Summarise.")
    with pytest.raises(CriticSpecError, match="invalid summary 'short'"):
        as_summary("short")


async def test_without_a_summary_the_goal_is_the_newest_observation():
    states, goals, _ = await as_summary("none").describe([STATE, STATE.prefix(0)])
    assert goals == ["a box", "find the key"]
    assert states[0] == "find the key\nThought: look inside\nAction: open\nObservation: a box"


# ---------------------------------------------------------------- calibration


def test_calibration_recovers_known_probabilities():
    rng = np.random.default_rng(0)
    q = rng.random(20_000)
    calibration = fit_calibration(q, rng.random(20_000) < q**2)
    at = np.linspace(0.1, 0.9, 9)
    assert calibration(at) == pytest.approx(at**2, abs=0.05)
    assert np.all(np.diff(calibration(np.linspace(-1, 2, 100))) >= 0)


def test_calibration_is_isotonic_regression():
    q, reached = [3.0, 1.0, 2.0, 2.0, 4.0, 5.0], [False, False, True, False, True, True]
    calibration = fit_calibration(q, reached)
    # By hand: 0 | (1 + 0 + 0) / 3 | 1 | 1, where equal neighbours form a block.
    assert calibration.probability == pytest.approx((0.0, 1 / 3, 1.0))
    assert calibration.q == pytest.approx((1.0, 7 / 3, 4.5))


@pytest.mark.parametrize(
    ("q", "reached", "message"),
    [
        ([0.1, 0.9], [True, True], "both outcomes are needed"),
        ([0.1], [True, False], "expected"),
        ([np.nan, 0.1], [True, False], "finite"),
    ],
)
def test_a_calibration_that_cannot_be_fitted_is_refused(q, reached, message):
    with pytest.raises(ConfigurationError, match=message):
        fit_calibration(q, reached)


@pytest.mark.parametrize("broken", [((), ()), ((0.0,), (0.1, 0.2)), ((1.0, 0.0), (0.1, 0.2)), ((0.0, 1.0), (0.5, 1.5))])
def test_a_curve_that_falls_or_leaves_the_unit_interval_is_refused(broken):
    with pytest.raises(CheckpointError):
        Calibration(*broken)


async def test_a_prepared_state_is_described_once():
    requests = []

    class Describes:
        spec = "none"

        async def describe(self, states):
            requests.append(states)
            return Described([f"state {len(state.steps)}" for state in states], [], Usage(1, 7))

    critic = GoalValueCritic(await checkpoint_for(HashedWords(64), 64), summary=Describes())
    meter = Meter()
    with metering(meter):
        await critic.prepare(STATE)
        first = await critic.reach(STATE, "try", GOALS)
        again = await critic.reach(STATE, "try", GOALS)
    assert first.tolist() == again.tolist()
    assert requests == [[STATE]]
    assert meter.read() == {"critic": Usage(1, 7)}
    await critic.reach(STATE.prefix(0), "try", GOALS)
    assert len(requests) == 2
