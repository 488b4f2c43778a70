import asyncio
import itertools
import json
import logging
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import amc_agents.models.embedded
from amc_agents.critics.render import DIALOGUE
from amc_agents.critics.server import http
from amc_agents.critics.server.folder import tokenizer_of
from amc_agents.critics.server.golden import Golden
from amc_agents.critics.spec import parse_critic
from amc_agents.critics.value import pooling
from amc_agents.critics.value.checkpoint import FILE, ValueCheckpoint
from amc_agents.critics.value.pooling import CONTROL_TOKENS, VLLMCritic, from_spec
from amc_agents.errors import CheckpointError, ConfigurationError, CriticError, CriticServerError, CriticSpecError
from amc_agents.population.graph import amc
from amc_agents.smc import AtSteps
from amc_agents.types import Step, Task, Trajectory
from amc_agents.usage import Meter, Usage, metering
from tests.critics.server.scripted_server import CUT, HANG, Reply, ScriptedServer
from tests.population.worlds import number_agent, start, sum_world

TOKENIZER = Path(amc_agents.models.embedded.__path__[0]) / "crafting" / "tokenizer.json"
TASK = Task("t", "Crafting commands:\ncraft 1 oak gate using 2 clay, 1 silk\n\nGoal: craft oak gate.")
SCALE = 10.0


def score(ids, shift=0.0):
    """A value model: it sees every token and its place."""
    return float(np.sin(sum((place + 1) * token for place, token in enumerate(ids)) % 1000)) + shift


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    monkeypatch.delenv("VLLM_API_KEY", raising=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint's folder without weights: what the critic needs on this side."""
    found = tmp_path_factory.mktemp("value")
    shutil.copy(TOKENIZER, found)
    tokenize = tokenizer_of(found)
    golden = []
    for n in range(3):
        segments = DIALOGUE.segments(trajectory(n))
        ids = tuple(token for text in segments for token in tokenize(text))
        golden.append(Golden(segments, ids, score(ids)))
    checkpoint = ValueCheckpoint(DIALOGUE, None, (), tuple(golden), 1e-6, scale=SCALE, target="return", beta=0.5)
    checkpoint.save(found)
    return found


def trajectory(n, of=0):
    """The task and `n` steps; `of` tells trajectories apart."""
    return Trajectory(TASK, tuple(Step(f"get {i + 1 + of} clay", f"Got {i + 1 + of} clay") for i in range(n)))


class FakeVLLM(ScriptedServer):
    """Answers as vLLM does. `faults` are the replies to the next requests of /classify."""

    def __init__(self, *, names=("value",), root=None, limit=4096, value=score):
        super().__init__(self.answer)
        self.names, self.root, self.limit, self.value = list(names), root, limit, value
        self.faults, self.change, self.models = [], lambda answer: None, None

    def answer(self, request):
        if request.path == "/v1/models":
            cards = [{"id": name, "root": self.root, "max_model_len": self.limit} for name in self.names]
            return Reply(body={"object": "list", "data": cards} if self.models is None else self.models)
        assert request.body["use_activation"] is False
        rows = request.body["input"]
        if self.faults:
            return self.faults.pop(0)
        if request.body["model"] not in self.names:
            return Reply(404, {"error": {"message": f"The model `{request.body['model']}` does not exist."}})
        if self.limit and max(map(len, rows)) > self.limit:
            return Reply(400, {"error": {"message": f"This model's maximum context length is {self.limit} tokens."}})
        data = [
            {"index": index, "label": "LABEL_0", "probs": [self.value(row)], "num_classes": 1}
            for index, row in enumerate(rows)
        ]
        # Order is not promised.
        body = {"object": "list", "data": data[::-1], "usage": {"prompt_tokens": sum(map(len, rows))}}
        self.change(body)
        return Reply(body=body)

    def batches(self):
        """The prompts of each /classify after the handshake, without the control."""
        return [request.body["input"][:-1] for request in self.asked("/classify")[1:]]


def expected(folder, trajectories, limit=None):
    encoder = replace(ValueCheckpoint.load(folder), max_tokens=limit).encoder(tokenizer_of(folder))
    return [SCALE * score([i for part in encoder.newest(one) for i in part]) for one in trajectories]


# --- what is asked and answered -------------------------------------------------------------------------------


async def test_values_are_the_scores_of_the_prompts_in_reward_units(folder):
    asked = [trajectory(n, of) for of in range(3) for n in range(5)]
    async with FakeVLLM() as server:
        values = await VLLMCritic(server.url, checkpoint=folder).values(asked)
    np.testing.assert_allclose(values, expected(folder, asked))
    assert len(set(values.tolist())) > 10


async def test_one_request_for_a_call_and_equal_prompts_once(folder):
    twins = [trajectory(2), trajectory(1), trajectory(2), trajectory(2), trajectory(1)]
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, checkpoint=folder)
        values = await critic.values(twins)
        assert (await critic.values([])).shape == (0,)
    (batch,) = server.batches()
    assert len(batch) == 2
    np.testing.assert_allclose(values, expected(folder, twins))


async def test_more_than_max_batch_is_split_and_sent_side_by_side(folder):
    asked = [trajectory(1, of) for of in range(7)]
    async with FakeVLLM() as server:
        server.respond = lambda request: replace(server.answer(request), wait=0.2)
        values = await VLLMCritic(server.url, checkpoint=folder, max_batch=3).values(asked)
    assert sorted(map(len, server.batches())) == [1, 3, 3]
    assert server.most_open == 3
    np.testing.assert_allclose(values, expected(folder, asked))


async def test_a_value_above_the_servers_length_keeps_the_task_and_the_newest_rounds(folder):
    long = trajectory(40)
    async with FakeVLLM(limit=200) as server:
        critic = VLLMCritic(server.url, checkpoint=folder)
        values = await critic.values([long])
    ((row,),) = server.batches()
    encoder = ValueCheckpoint.load(folder).encoder(tokenizer_of(folder))
    segments = encoder.segments(long)
    assert len(row) <= 200 < sum(map(len, segments))
    assert row[: len(segments[0])] == list(segments[0])
    newest = [token for segment in segments[-5:] for token in segment]
    assert row[-len(newest) :] == newest
    np.testing.assert_allclose(values, expected(folder, [long], 200))


async def test_the_checkpoints_own_limit_holds_where_it_is_less(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "v")
    replace(ValueCheckpoint.load(folder), max_tokens=150).save(tmp_path / "v")
    async with FakeVLLM(limit=None) as server:
        await VLLMCritic(server.url, checkpoint=tmp_path / "v").values([trajectory(40)])
    assert len(server.batches()[0][0]) <= 150


async def test_the_checkpoint_says_what_is_predicted(folder):
    critic = VLLMCritic("http://127.0.0.1:1", checkpoint=folder)
    assert (critic.predicts, critic.beta) == ("return", 0.5)
    with pytest.raises(CriticError, match="not known before the server was asked"):
        _ = VLLMCritic("http://127.0.0.1:1").predicts


async def test_usage_is_the_servers_own(folder):
    def cached(answer):
        answer["usage"]["prompt_tokens_details"] = {"cached_tokens": 7}

    meter = Meter()
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, checkpoint=folder)
        with metering(meter):
            await critic.values([trajectory(1), trajectory(1)])
            plain = critic.usage
            server.change = cached
            await critic.values([trajectory(2)])
            tokens = sum(len(row) for request in server.asked("/classify") for row in request.body["input"])
            assert critic.usage == Usage(calls=3, input_tokens=tokens, cached_tokens=7)
            server.change = lambda answer: answer.pop("usage")
            await critic.values([trajectory(3)])
    assert plain.calls == 2
    assert plain.cached_tokens == plain.missing == 0
    assert (critic.usage.calls, critic.usage.missing) == (4, 1)
    assert meter.by_model() == {"critic": {"value": critic.usage}}


async def test_tokenizing_does_not_hold_up_the_event_loop(folder, monkeypatch):
    threads = set()

    def watched(found):
        tokenize = tokenizer_of(found)

        def remembering(text):
            threads.add(threading.get_ident())
            return tokenize(text)

        return remembering

    monkeypatch.setattr(pooling, "tokenizer_of", watched)
    async with FakeVLLM() as server:
        await VLLMCritic(server.url, checkpoint=folder).values([trajectory(1, of) for of in range(30)])
    assert threads
    assert threading.get_ident() not in threads


# --- the first use --------------------------------------------------------------------------------------------


async def test_there_is_one_handshake_whoever_comes_first(folder):
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, checkpoint=folder)
        here = [critic.values([trajectory(1, of)]) for of in range(5)]
        threads = [asyncio.to_thread(asyncio.run, critic.values([trajectory(1, of)])) for of in range(5)]
        values = await asyncio.gather(*here, *threads)
    assert len(server.asked("/v1/models")) == 1
    assert len(server.asked("/classify")) == 11
    np.testing.assert_allclose([one[0] for one in values], expected(folder, [trajectory(1, of) for of in range(5)]) * 2)


async def test_a_failed_handshake_is_shared_and_tried_again_later(folder):
    async with FakeVLLM() as server:
        server.faults = [Reply(400)]
        critic = VLLMCritic(server.url, checkpoint=folder)
        failed = await asyncio.gather(*(critic.values([trajectory(1)]) for _ in range(4)), return_exceptions=True)
        assert [type(one) for one in failed] == [CriticServerError] * 4
        assert len(server.asked("/v1/models")) == 1
        assert len(await critic.values([trajectory(1)])) == 1


@pytest.mark.parametrize("gives_up", [0, 1])
async def test_one_who_gives_up_does_not_take_the_others_along(folder, gives_up):
    async with FakeVLLM() as server:
        server.faults = [HANG]
        critic = VLLMCritic(server.url, checkpoint=folder, timeout=0.5)
        asking = [asyncio.create_task(critic.values([trajectory(1)])) for _ in range(2)]
        while not server.asked("/classify"):
            await asyncio.sleep(0.01)
        asking.pop(gives_up).cancel()
        assert len(await asyncio.wait_for(asking[0], 10)) == 1


@pytest.mark.parametrize(
    ("names", "model", "says"),
    [
        (["a", "b"], None, "it serves a, b: say which"),
        (["a", "b"], "value", "no model 'value' on this server, it serves a, b"),
        ([], "value", "it serves nothing"),
    ],
)
async def test_a_model_that_is_not_served_is_an_error_that_lists_what_is(folder, names, model, says):
    async with FakeVLLM(names=names) as server:
        with pytest.raises(CriticServerError, match=says):
            await VLLMCritic(server.url, model=model, checkpoint=folder).values([trajectory(1)])
    assert server.asked("/classify") == []


async def test_the_model_that_was_named_is_asked(folder):
    async with FakeVLLM(names=["other", "value"]) as server:
        critic = VLLMCritic(server.url, model="value", checkpoint=folder)
        assert await critic.connect() == "value"
    assert {request.body["model"] for request in server.asked("/classify")} == {"value"}


async def test_a_model_that_is_served_for_generation(folder):
    async with FakeVLLM() as server:
        server.faults = [Reply(404, {"detail": "Not Found"})]
        with pytest.raises(CriticServerError, match="--runner pooling"):
            await VLLMCritic(server.url, checkpoint=folder).connect()


@pytest.mark.parametrize(
    ("models", "says"),
    [
        ({"data": "none"}, "expected a list of models, got"),
        ([1], "expected a list of models, got"),
        ({"data": [{"id": 3}]}, "expected a model's `id`, got"),
        ({"data": ["value"]}, "expected a model's `id`, got"),
        ({"data": [{"id": "value", "max_model_len": "4096"}]}, "expected a number of tokens as `max_model_len`"),
        ({"data": [{"id": "value", "max_model_len": True}]}, "expected a number of tokens as `max_model_len`"),
        ({"data": [{"id": "value", "max_model_len": 10**400}]}, "expected a number of tokens as `max_model_len`"),
    ],
)
async def test_something_else_than_a_list_of_models(folder, models, says):
    async with FakeVLLM() as server:
        server.models = models
        with pytest.raises(CriticServerError, match=says) as caught:
            await VLLMCritic(server.url, checkpoint=folder).connect()
    assert len(str(caught.value)) <= 400


async def test_a_server_of_very_many_models_lists_a_few(folder):
    async with FakeVLLM(names=[f"model-{i}" * 20 for i in range(1000)]) as server:
        with pytest.raises(CriticServerError, match="and 996 more") as caught:
            await VLLMCritic(server.url, checkpoint=folder, model="other").connect()
    assert len(str(caught.value)) <= 400


@pytest.mark.parametrize("usage", [None, [1], {"prompt_tokens": 1.5}, {"prompt_tokens": True}, {"prompt_tokens": -1}])
async def test_an_answer_that_does_not_say_what_it_used_counts_as_missing(folder, usage):
    async with FakeVLLM() as server:
        server.change = lambda answer: answer.update(usage=usage)
        critic = VLLMCritic(server.url, checkpoint=folder)
        await critic.values([trajectory(1)])
    assert critic.usage == Usage(calls=2, missing=2)


@pytest.mark.parametrize("details", [[1], "cached", {"cached_tokens": [1]}, {"cached_tokens": None}])
async def test_cached_tokens_in_another_shape_are_none(folder, details):
    async with FakeVLLM() as server:
        server.change = lambda answer: answer["usage"].update(prompt_tokens_details=details)
        critic = VLLMCritic(server.url, checkpoint=folder)
        await critic.values([trajectory(1)])
    assert critic.usage.cached_tokens == 0
    assert critic.usage.input_tokens > 0


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (lambda row: 1 / (1 + np.exp(-score(row))), "sigmoid"),
        (lambda row: score(row) + 0.3, "golden scores differ"),
        (lambda row: float("nan"), "not finite"),
    ],
)
async def test_a_server_with_other_scores_is_refused(folder, value, says):
    async with FakeVLLM(value=value) as server:
        with pytest.raises(CheckpointError, match=says):
            await VLLMCritic(server.url, checkpoint=folder).values([trajectory(1)])


async def test_the_tolerance_is_the_callers(folder):
    async with FakeVLLM(value=lambda row: score(row) + 0.01) as server:
        await VLLMCritic(server.url, checkpoint=folder, tolerance=0.02).connect()
        with pytest.raises(CheckpointError):
            await VLLMCritic(server.url, checkpoint=folder, tolerance=0.005).connect()


async def test_a_server_too_short_for_the_golden_prompts(folder):
    async with FakeVLLM(limit=20) as server:
        with pytest.raises(CheckpointError, match="--max-model-len"):
            await VLLMCritic(server.url, checkpoint=folder).connect()


async def test_a_checkpoint_that_could_not_tell_a_wrong_server_is_refused(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "v")
    replace(ValueCheckpoint.load(folder), golden=()).save(tmp_path / "v")
    async with FakeVLLM() as server:
        with pytest.raises(CheckpointError, match="no golden scores"):
            await VLLMCritic(server.url, checkpoint=tmp_path / "v").connect()


# --- where the checkpoint is found ----------------------------------------------------------------------------


async def test_the_models_name_may_be_a_folder(folder):
    async with FakeVLLM(names=[str(folder)]) as server:
        assert VLLMCritic(server.url, model=str(folder)).predicts == "return"
        assert await VLLMCritic(server.url).connect() == str(folder)


async def test_the_root_that_the_server_reports_may_be_one(folder):
    async with FakeVLLM(root=str(folder)) as server:
        critic = VLLMCritic(server.url)
        await critic.connect()
        assert critic.predicts == "return"


@pytest.fixture
def hub_cache(folder, tmp_path, monkeypatch):
    """A cache of the hub with the repository acme/value, and no way to the hub itself."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--acme--value"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    shutil.copytree(folder, repository / "snapshots" / ("0" * 40))
    return repository


@pytest.mark.usefixtures("hub_cache")
@pytest.mark.parametrize("served", [{"names": ["acme/value"]}, {"names": ["value"], "root": "acme/value"}])
async def test_a_repository_of_the_hub_is_found_in_its_cache(served):
    async with FakeVLLM(**served) as server:
        critic = VLLMCritic(server.url)
        await critic.connect()
        assert critic.predicts == "return"


async def test_a_repository_without_a_value_checkpoint(hub_cache):
    next(hub_cache.glob(f"snapshots/*/{FILE}")).unlink()
    async with FakeVLLM(names=["acme/value"]) as server:
        with pytest.raises(CheckpointError, match=f"it has no {FILE}"):
            await VLLMCritic(server.url).connect()


@pytest.mark.usefixtures("hub_cache")
async def test_a_checkpoint_that_is_nowhere_says_what_to_do():
    async with FakeVLLM(names=["acme/other"], root="/on/another/machine") as server:
        with pytest.raises(CheckpointError, match="checkpoint=path/to/value") as caught:
            await VLLMCritic(server.url).connect()
    assert "/on/another/machine: no folder of this machine" in str(caught.value)
    assert "acme/other on the Hugging Face hub" in str(caught.value)


def test_a_checkpoint_that_is_no_folder_is_refused_at_once(tmp_path):
    with pytest.raises(CheckpointError, match=f"with {FILE} in it"):
        VLLMCritic("http://host:8000", checkpoint=tmp_path)


async def test_a_folder_without_its_tokenizer(folder, tmp_path):
    shutil.copy(folder / FILE, tmp_path)
    async with FakeVLLM() as server:
        with pytest.raises(CheckpointError, match=r"tokenizer\.json does not exist"):
            await VLLMCritic(server.url, checkpoint=tmp_path).connect()
        (tmp_path / "tokenizer.json").write_text("{}")
        with pytest.raises(CheckpointError, match="is not a tokenizer"):
            await VLLMCritic(server.url, checkpoint=tmp_path).connect()


def test_a_tokenizers_own_truncation_and_padding_are_left_out(folder, tmp_path):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=6)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for text in ("get clay", TASK.instruction):
        assert tokenizer_of(tmp_path)(text) == tokenizer_of(folder)(text)


# --- wrong answers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda answer: answer.pop("data"), "expected 3 rows in `data`"),
        (lambda answer: answer["data"].pop(), "expected 3 rows in `data`"),
        (lambda answer: answer["data"][0].pop("probs"), "one number in `probs`, got {'index': 2"),
        (lambda answer: answer["data"][0].update(probs=[]), "one number in `probs`"),
        (lambda answer: answer["data"][0].update(probs=[None]), "one number in `probs`"),
        (lambda answer: answer["data"][0].update(probs=0.5), "one number in `probs`"),
        (lambda answer: answer["data"][0].update(probs=[True]), "one number in `probs`"),
        (lambda answer: answer["data"][1].update(probs=[10**400]), "inf for trajectory 1"),
        (lambda answer: answer["data"][0].update(probs=[0.1, 0.9]), "2 labels for a prompt"),
        (lambda answer: answer["data"][0].update(index=7), r"`index` \(0 to 2\)"),
        (lambda answer: answer["data"][0].pop("index"), r"`index` \(0 to 2\)"),
        (lambda answer: answer["data"][0].update(index=0), "each `index` from 0 to 2 once"),
        (lambda answer: answer["data"][1].update(probs=[float("nan")]), "nan for trajectory 1"),
        (lambda answer: answer["data"][1].update(probs=[float("inf")]), "inf for trajectory 1"),
    ],
)
async def test_an_answer_of_the_wrong_shape_says_what_came(folder, change, says):
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, checkpoint=folder)
        await critic.connect()
        server.change = change
        with pytest.raises(CriticError, match=says):
            await critic.values([trajectory(1), trajectory(2)])


async def test_an_answer_that_is_no_object(folder):
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, checkpoint=folder)
        await critic.connect()
        server.faults = [Reply(body=[1, 2])]
        with pytest.raises(CriticError, match=r"got \[1, 2\]"):
            await critic.values([trajectory(1)])


@pytest.mark.parametrize("fault", [Reply(500), Reply(429, headers={"Retry-After": "0"}), CUT])
async def test_what_passes_is_not_seen(folder, fault):
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, checkpoint=folder, retry_for=10)
        await critic.connect()
        server.faults = [fault]
        np.testing.assert_allclose(await critic.values([trajectory(1)]), expected(folder, [trajectory(1)]))


# --- a server that becomes another one ------------------------------------------------------------------------


async def test_a_server_killed_in_the_middle_of_a_run_and_restarted(folder):
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, checkpoint=folder, retry_for=20)
        await critic.connect()
        server.faults = [HANG]
        waiting = asyncio.create_task(critic.values([trajectory(1)]))
        while len(server.asked("/classify")) < 2:
            await asyncio.sleep(0.01)
        server.kill()
        await asyncio.sleep(0.2)
        await server.start()
        np.testing.assert_allclose(await waiting, expected(folder, [trajectory(1)]))
    assert len(server.asked("/v1/models")) == 2


@pytest.mark.parametrize("names", [["value"], ["renamed"]])
async def test_a_shorter_or_renamed_server_after_the_restart_is_asked_as_it_wants(folder, names):
    async with FakeVLLM(limit=400) as server:
        critic = VLLMCritic(server.url, checkpoint=folder)
        await critic.values([trajectory(40)])
        server.kill()
        server.limit, server.names = 200, names
        await server.start()
        np.testing.assert_allclose(await critic.values([trajectory(40)]), expected(folder, [trajectory(40)], 200))


async def test_a_refusal_by_the_same_server_is_not_repeated(folder):
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, checkpoint=folder)
        await critic.connect()
        server.faults = [Reply(400, {"error": {"message": "no such tokens"}})]
        with pytest.raises(CriticServerError, match="no such tokens"):
            await critic.values([trajectory(1)])
    # Two handshakes, and the request between them.
    assert len(server.asked("/classify")) == 3


@pytest.mark.parametrize("seen", [True, False])
async def test_another_model_after_the_restart_is_an_error(folder, seen):
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, checkpoint=folder, retry_for=20)
        await critic.values([trajectory(1)])
        server.kill()
        server.value = lambda row: score(row, shift=0.2)
        waiting = None
        if seen:
            waiting = asyncio.create_task(critic.values([trajectory(2)]))
            await asyncio.sleep(0.3)
        # Not seen: it happens between two calls, and no connection is lost.
        await server.start()
        with pytest.raises(CheckpointError, match="golden scores differ"):
            await (waiting or critic.values([trajectory(2)]))


async def test_a_model_of_another_name_after_the_restart_is_an_error(folder):
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, model="value", checkpoint=folder)
        await critic.values([trajectory(1)])
        server.names = ["other"]
        with pytest.raises(CriticServerError, match="no model 'value' on this server, it serves other"):
            await critic.values([trajectory(2)])


@pytest.mark.parametrize("status", [500, 503])
async def test_every_second_request_may_be_lost(folder, status):
    """One dead server of two behind a balancer: each answer comes at the second attempt."""
    async with FakeVLLM() as server:
        right, count = server.respond, itertools.count()
        server.respond = lambda request: Reply(status) if next(count) % 2 == 0 else right(request)
        critic = VLLMCritic(server.url, checkpoint=folder)
        for n in range(1, 4):
            np.testing.assert_allclose(await critic.values([trajectory(n)]), expected(folder, [trajectory(n)]))


async def test_answers_of_an_interrupted_call_count_only_if_the_server_proves_to_be_the_same(folder):
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, checkpoint=folder)
        await critic.connect()
        server.faults = [Reply(503)]
        # A server that answers otherwise than the checkpoint, where the control prompt does not show it.
        server.value = lambda row: score(row, shift=0.0 if len(row) <= CONTROL_TOKENS else 0.2)
        with pytest.raises(CheckpointError, match="golden scores differ"):
            await critic.values([trajectory(1)])


async def test_a_server_that_changes_with_every_request_is_an_error(folder):
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, checkpoint=folder)
        shifts = iter(range(1000))

        def value(row):
            return score(row) if len(row) > CONTROL_TOKENS else score(row, shift=next(shifts))

        server.value = value
        with pytest.raises(CriticServerError, match="servers of different models"):
            await critic.values([trajectory(2)])


# --- the string -----------------------------------------------------------------------------------------------


async def test_the_string_reaches_the_critic(folder):
    async with FakeVLLM(names=["a", "value"]) as server:
        critic = parse_critic(
            f"vllm:{server.url}?model=value&checkpoint={folder}&max_batch=2&tolerance=0.5&timeout=5&retry_for=0"
        )
        asked = [trajectory(1, of) for of in range(4)]
        np.testing.assert_allclose(await critic.values(asked), expected(folder, asked))
    assert list(map(len, server.batches())) == [2, 2]


async def test_the_key_of_a_variable_is_sent_and_never_shown(folder, monkeypatch):
    monkeypatch.setenv("VALUE_KEY", "sk-do-not-show")
    async with FakeVLLM() as server:
        critic = from_spec(server.url, {"checkpoint": str(folder), "key_env": "VALUE_KEY", "retry_for": "0"})
        await critic.connect()
        server.faults = [Reply(401, {"error": "Unauthorized: sk-do-not-show"})]
        with pytest.raises(CriticServerError, match="set VALUE_KEY") as caught:
            await critic.values([trajectory(1)])
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer sk-do-not-show"}
    assert "sk-do-not-show" not in str(caught.value) + critic.name


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("vllm:", "needs a target, as in vllm:http://host:8000"),
        ("vllm:http://h?modell=x", "did you mean 'model'"),
        ("vllm:http://h?max_batch=0", "max_batch must be a positive integer"),
        ("vllm:http://h?tolerance=-1", "tolerance must be a number of at least 0"),
        ("vllm:http://h?timeout=0", "timeout must be a number"),
    ],
)
def test_a_string_that_is_not_understood(spec, says):
    with pytest.raises(CriticSpecError, match=says):
        parse_critic(spec)


# --- a whole run ----------------------------------------------------------------------------------------------


def run_with(critic, beta=0.5, **settings):
    graph = amc(
        number_agent(), critic, environment=sum_world, n_particles=5, resample=AtSteps(1, 2), seed=2, beta=beta,
        **settings,
    )  # fmt: skip
    return graph.arun(start())


async def test_a_model_for_another_beta_is_refused_though_the_server_had_to_be_asked_for_it(folder):
    async with FakeVLLM(root=str(folder)) as server:
        with pytest.raises(ConfigurationError, match=r"beta 0\.5"):
            await run_with(VLLMCritic(server.url), beta=1.0)


async def test_a_run_is_weighed_by_the_server_and_counts_its_usage(folder):
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, checkpoint=folder)
        run = await run_with(critic)
    assert run.notes == ()
    assert run.usage["critic"] == critic.usage
    assert run.usage["critic"].calls == len(server.asked("/classify")) >= 3
    assert all(np.ptp(point.values) > 0 for point in run.history[:2])


async def test_a_critic_that_fails_ends_the_run(folder):
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, checkpoint=folder, retry_for=0)
        await critic.connect()
        server.faults = [Reply(500, {"error": {"message": "EngineCore encountered an issue"}})]
        with pytest.raises(CriticServerError, match="EngineCore encountered an issue"):
            await run_with(critic)


async def test_or_the_weights_are_kept_and_the_run_says_so(folder):
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, checkpoint=folder, retry_for=0)
        await critic.connect()
        server.faults = [Reply(500, {"error": {"message": "EngineCore encountered an issue"}})]
        run = await run_with(critic, on_critic_error="uniform")
    (note,) = run.notes
    assert note.startswith("step 1: the critic failed and the weights were kept")
    assert "EngineCore encountered an issue" in note
    assert np.ptp(run.history[0].log_weights) == 0
    assert np.ptp(run.history[1].log_weights) > 0


async def test_no_server_at_all_in_a_run_that_may_go_on(folder):
    async with FakeVLLM() as server:
        pass
    run = await run_with(VLLMCritic(server.url, checkpoint=folder), on_critic_error="uniform")
    assert ["is the server started" in note for note in run.notes] == [True, True, True], (
        "at the start, at step 1 and at the end"
    )


async def test_another_model_is_never_passed_over(folder):
    async with FakeVLLM(value=lambda row: score(row, shift=1.0)) as server:
        with pytest.raises(CheckpointError, match="golden scores differ"):
            await run_with(VLLMCritic(server.url, checkpoint=folder), on_critic_error="uniform")


def test_what_is_logged_holds_no_key(folder, caplog, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "sk-do-not-show")

    async def main():
        async with FakeVLLM() as server:
            await VLLMCritic(server.url, checkpoint=folder).values([trajectory(1)])

    with caplog.at_level(logging.DEBUG):
        asyncio.run(main())
    assert caplog.records
    assert "sk-do-not-show" not in json.dumps([record.getMessage() for record in caplog.records])


# --- named by a call ------------------------------------------------------------------------------------------


def by_call(spec):
    return parse_critic(spec, trusted=False)


async def test_a_server_of_this_machine_may_say_where_its_checkpoint_is(folder):
    async with FakeVLLM(root=str(folder)) as server:
        asked = [trajectory(2)]
        np.testing.assert_allclose(await by_call(f"vllm:{server.url}").values(asked), expected(folder, asked))


async def test_one_of_another_machine_may_not(folder, monkeypatch):
    monkeypatch.setattr(http, "is_loopback", lambda host: False)
    async with FakeVLLM(root=str(folder), names=[str(folder)]) as server:
        with pytest.raises(CheckpointError, match="no checkpoint was found"):
            await by_call(f"vllm:{server.url}").connect()
        with pytest.raises(CheckpointError, match="no checkpoint was found"):
            await by_call(f"vllm:{server.url}?model={folder}").connect()


@pytest.mark.parametrize(
    "reply",
    [
        Reply(404, {"error": "CANARY"}),
        Reply(500, {"error": "CANARY"}),
        Reply(302, b"", {"Location": "http://CANARY/"}),
        Reply(200, b"<html>CANARY"),
        Reply(200, {"data": [{"id": "CANARY"}, {"id": "other"}]}),
        Reply(200, {"data": "CANARY"}),
        Reply(200, {"data": [{"id": "CANARY", "max_model_len": "CANARY"}]}),
    ],
)
@pytest.mark.parametrize("kind", ["vllm", "verdict"])
async def test_no_part_of_its_answer_stands_in_an_error(reply, kind):
    async with ScriptedServer(lambda request: reply) as server:
        critic = by_call(f"{kind}:{server.url}?retry_for=0")
        for ask in (critic.connect, lambda: critic.values([trajectory(1)])):
            with pytest.raises(CriticServerError, match="Details are in the log only") as caught:
                await ask()
            assert "CANARY" not in str(caught.value)
