"""The critic `vllm:`: requests, the handshake, answers, strings, and untrusted use."""

import asyncio
import shutil
import threading
from dataclasses import replace

import numpy as np
import pytest

from amc_agents.critics.server import client
from amc_agents.critics.server.served import tokenizer_of
from amc_agents.critics.spec import parse_critic
from amc_agents.critics.value import pooling
from amc_agents.critics.value.checkpoint import ValueCheckpoint
from amc_agents.critics.value.pooling import VLLMCritic, one_server
from amc_agents.errors import CheckpointError, CriticError, CriticServerError, CriticSpecError
from amc_agents.usage import Meter, Usage, metering
from tests.critics.server.scripted_server import HANG, Reply, ScriptedServer
from tests.critics.value.fake_vllm import FakeVLLM, expected, folder, score, trajectory

__all__ = ["folder"]


# --- requests and answers --------------------------------------------------------------------------------------------


async def test_values_are_the_scores_of_the_prompts_in_reward_units(folder):
    states = [trajectory(n, of) for of in range(3) for n in range(5)]
    async with FakeVLLM() as server:
        values = await VLLMCritic(server.url, checkpoint=folder).values(states)
    np.testing.assert_allclose(values, expected(folder, states))
    assert len(set(values.tolist())) > 10


async def test_a_call_is_one_request_with_each_distinct_prompt_once(folder):
    twins = [trajectory(2), trajectory(1), trajectory(2), trajectory(2), trajectory(1)]
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, checkpoint=folder)
        values = await critic.values(twins)
        assert (await critic.values([])).shape == (0,)
    (batch,) = server.batches()
    assert len(batch) == 2
    np.testing.assert_allclose(values, expected(folder, twins))


async def test_more_prompts_than_max_batch_are_split_and_sent_concurrently(folder):
    states = [trajectory(1, of) for of in range(7)]
    async with FakeVLLM() as server:
        server.respond = lambda request: replace(server.answer(request), wait=0.2)
        values = await VLLMCritic(server.url, checkpoint=folder, max_batch=3).values(states)
    assert sorted(map(len, server.batches())) == [1, 3, 3]
    assert server.most_open == 3
    np.testing.assert_allclose(values, expected(folder, states))


async def test_a_prompt_above_the_servers_limit_keeps_the_task_and_the_newest_rounds(folder):
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


async def test_a_smaller_limit_of_the_checkpoint_applies(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "v")
    replace(ValueCheckpoint.load(folder), max_tokens=150).save(tmp_path / "v")
    async with FakeVLLM(limit=None) as server:
        await VLLMCritic(server.url, checkpoint=tmp_path / "v").values([trajectory(40)])
    assert len(server.batches()[0][0]) <= 150


async def test_the_checkpoint_says_what_is_predicted(folder):
    critic = VLLMCritic("http://127.0.0.1:1", checkpoint=folder)
    assert (critic.predicts, critic.beta) == ("return", 0.5)
    with pytest.raises(CriticError, match="checkpoint is unknown until it connects"):
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


async def test_tokenizing_does_not_block_the_event_loop(folder, monkeypatch):
    threads = set()

    def watched(path):
        tokenize = tokenizer_of(path)

        def remembering(text):
            threads.add(threading.get_ident())
            return tokenize(text)

        return remembering

    monkeypatch.setattr(pooling, "tokenizer_of", watched)
    async with FakeVLLM() as server:
        await VLLMCritic(server.url, checkpoint=folder).values([trajectory(1, of) for of in range(30)])
    assert threads
    assert threading.get_ident() not in threads


# --- the handshake ---------------------------------------------------------------------------------------------------


async def test_concurrent_first_calls_share_one_handshake(folder):
    async with FakeVLLM() as server:
        critic = VLLMCritic(server.url, checkpoint=folder)
        here = [critic.values([trajectory(1, of)]) for of in range(5)]
        threads = [asyncio.to_thread(asyncio.run, critic.values([trajectory(1, of)])) for of in range(5)]
        values = await asyncio.gather(*here, *threads)
    assert len(server.asked("/v1/models")) == 1
    assert len(server.asked("/classify")) == 11
    np.testing.assert_allclose(
        [value[0] for value in values], expected(folder, [trajectory(1, of) for of in range(5)]) * 2
    )


async def test_a_failed_handshake_is_shared_and_retried_by_the_next_call(folder):
    async with FakeVLLM() as server:
        server.faults = [Reply(400)]
        critic = VLLMCritic(server.url, checkpoint=folder)
        failed = await asyncio.gather(*(critic.values([trajectory(1)]) for _ in range(4)), return_exceptions=True)
        assert [type(error) for error in failed] == [CriticServerError] * 4
        assert len(server.asked("/v1/models")) == 1
        assert len(await critic.values([trajectory(1)])) == 1


@pytest.mark.parametrize("gives_up", [0, 1])
async def test_a_cancelled_call_does_not_cancel_the_others(folder, gives_up):
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
        (["a", "b"], None, "but it serves a, b: choose with"),
        (["a", "b"], "value", "model 'value' is not on this server, which serves a, b"),
        ([], "value", "which serves nothing"),
    ],
)
async def test_a_model_that_is_not_served_is_an_error_that_lists_the_served_models(folder, names, model, says):
    async with FakeVLLM(names=names) as server:
        with pytest.raises(CriticServerError, match=says):
            await VLLMCritic(server.url, model=model, checkpoint=folder).values([trajectory(1)])
    assert server.asked("/classify") == []


async def test_the_named_model_is_used(folder):
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
async def test_an_invalid_list_of_models_is_an_error(folder, models, says):
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


async def test_tolerance_overrides_the_checkpoints(folder):
    async with FakeVLLM(value=lambda row: score(row) + 0.01) as server:
        await VLLMCritic(server.url, checkpoint=folder, tolerance=0.02).connect()
        with pytest.raises(CheckpointError):
            await VLLMCritic(server.url, checkpoint=folder, tolerance=0.005).connect()


async def test_a_limit_below_the_golden_prompts_is_an_error(folder):
    async with FakeVLLM(limit=20) as server:
        with pytest.raises(CheckpointError, match="--max-model-len"):
            await VLLMCritic(server.url, checkpoint=folder).connect()


async def test_a_checkpoint_without_golden_scores_is_refused(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "v")
    replace(ValueCheckpoint.load(folder), golden=()).save(tmp_path / "v")
    async with FakeVLLM() as server:
        with pytest.raises(CheckpointError, match="no golden scores"):
            await VLLMCritic(server.url, checkpoint=tmp_path / "v").connect()


# --- wrong answers ---------------------------------------------------------------------------------------------------


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


# --- the string ------------------------------------------------------------------------------------------------------


async def test_the_options_of_the_string_reach_the_critic(folder):
    async with FakeVLLM(names=["a", "value"]) as server:
        critic = parse_critic(
            f"vllm:{server.url}?model=value&checkpoint={folder}&max_batch=2&tolerance=0.5&timeout=5&retry_for=0"
        )
        states = [trajectory(1, of) for of in range(4)]
        np.testing.assert_allclose(await critic.values(states), expected(folder, states))
    assert list(map(len, server.batches())) == [2, 2]


async def test_the_key_of_a_variable_is_sent_and_never_shown(folder, monkeypatch):
    monkeypatch.setenv("VALUE_KEY", "sk-do-not-show")
    async with FakeVLLM() as server:
        critic = one_server(
            server.url, {"checkpoint": str(folder), "key_env": "VALUE_KEY", "retry_for": "0"}, trusted=True
        )
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
def test_an_invalid_string_is_refused(spec, says):
    with pytest.raises(CriticSpecError, match=says):
        parse_critic(spec)


# --- untrusted critics -----------------------------------------------------------------------------------------------


def by_call(spec):
    return parse_critic(spec, trusted=False)


async def test_a_local_server_may_name_its_checkpoint_folder(folder):
    async with FakeVLLM(root=str(folder)) as server:
        states = [trajectory(2)]
        np.testing.assert_allclose(await by_call(f"vllm:{server.url}").values(states), expected(folder, states))


async def test_a_remote_server_may_not_name_a_folder(folder, monkeypatch):
    monkeypatch.setattr(client, "is_loopback", lambda host: False)
    async with FakeVLLM(root=str(folder), names=[str(folder)]) as server:
        with pytest.raises(CheckpointError, match="its model has no checkpoint here"):
            await by_call(f"vllm:{server.url}").connect()
        with pytest.raises(CheckpointError, match="its model has no checkpoint here"):
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
async def test_errors_contain_no_part_of_the_answer(reply, kind):
    async with ScriptedServer(lambda request: reply) as server:
        critic = by_call(f"{kind}:{server.url}?retry_for=0")
        for ask in (critic.connect, lambda: critic.values([trajectory(1)])):
            with pytest.raises(CriticServerError, match="Details are in the log only") as caught:
                await ask()
            assert "CANARY" not in str(caught.value)
