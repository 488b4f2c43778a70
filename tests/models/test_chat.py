from __future__ import annotations

import asyncio
import copy
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from langchain_core.callbacks import UsageMetadataCallbackHandler
from langchain_core.messages import HumanMessage, SystemMessage
from pydantic import ValidationError

from amc_agents.errors import ConfigurationError
from amc_agents.models.batcher import _Ticket
from amc_agents.models.embedded import EmbeddedChatModel, NumpyLlama, WordTokenizer
from amc_agents.models.engine import log_softmax
from amc_agents.models.seeding import use_rng

TASK = "Goal: craft oak gate. craft 1 oak gate using 2 clay, 1 silk"


@pytest.fixture
def model(model_folder):
    return EmbeddedChatModel(model=str(model_folder), max_tokens=12)


@pytest.fixture
def slow_steps(monkeypatch):
    """Make every step of a model take 5 ms, and record its number of rows."""

    def slow(model):
        decoder = model._engine().batcher.decoder
        widths, step = [], decoder.step

        def wait_and_step(tokens):
            widths.append(len(tokens))
            time.sleep(0.005)
            return step(tokens)

        monkeypatch.setattr(decoder, "step", wait_and_step)
        return widths

    return slow


def plain_greedy(folder, text, length):
    """Decode greedily, recomputing the whole sequence for every token."""
    network, tokenizer = NumpyLlama.load(folder), WordTokenizer.from_folder(folder)
    ids = tokenizer.encode_chat([("user", text)])
    written, logprobs = [], []
    while len(written) < length and (not written or written[-1] != tokenizer.end_id):
        tokens = np.array(ids + written)
        hidden = network.forward(tokens, np.array([len(tokens)]), network.new_rows(), 0)
        line = log_softmax(network.logits(hidden[-1:]))[0]
        written.append(int(line.argmax()))
        logprobs.append(float(line.max()))
    return tokenizer.decode(written), written, logprobs


def test_greedy_answer_equals_plain_decoding(model, model_folder):
    text, tokens, logprobs = plain_greedy(model_folder, TASK, 12)
    answer = model.invoke(TASK, temperature=0, logprobs=True, top_logprobs=2)
    assert answer.content == text
    content = answer.response_metadata["logprobs"]["content"]
    assert [entry["logprob"] for entry in content] == pytest.approx(logprobs, abs=1e-4)
    assert all(entry["top_logprobs"][0]["token"] == entry["token"] for entry in content)
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)
    assert answer.usage_metadata["output_tokens"] == len(tokens)


async def test_sync_async_streams_and_batches_agree(model):
    expected = model.invoke(TASK, seed=3)
    assert (await model.ainvoke(TASK, seed=3)).content == expected.content
    assert model.batch([TASK, TASK], seed=3)[1].content == expected.content
    pieces = list(model.stream(TASK, seed=3))
    assert len(pieces) > 2
    assert "".join(piece.content for piece in pieces) == expected.content
    whole = None
    async for piece in model.astream(TASK, seed=3, logprobs=True):
        whole = piece if whole is None else whole + piece
    assert whole.content == expected.content
    assert len(whole.response_metadata["logprobs"]["content"]) == expected.usage_metadata["output_tokens"]
    assert whole.response_metadata["finish_reason"] == expected.response_metadata["finish_reason"]
    assert whole.usage_metadata["total_tokens"] == expected.usage_metadata["total_tokens"]


async def test_a_stream_contains_no_partial_characters(model_folder, writes_bytes):
    model = EmbeddedChatModel(model=str(model_folder))
    text = writes_bytes(model)
    pieces = [chunk.content for chunk in model.stream(TASK)]
    assert pieces == [chunk.content async for chunk in model.astream(TASK)]
    assert "".join(pieces) == model.invoke(TASK).content == text
    assert [piece for piece in pieces if piece] == list(text), "each character as soon as it is complete"


async def test_an_answer_does_not_depend_on_the_batch(model):
    alone = [(await model.ainvoke(f"{TASK} {i}", seed=i)).content for i in range(20)]
    together = await asyncio.gather(*(model.ainvoke(f"{TASK} {i}", seed=i) for i in reversed(range(20))))
    assert [answer.content for answer in reversed(together)] == alone
    assert len(set(alone)) > 10


async def test_siblings_differ_without_a_seed_and_are_reproducible_with_their_streams(model):
    assert len({answer.content for answer in await asyncio.gather(*(model.ainvoke(TASK) for _ in range(8)))}) > 4

    async def particle(number):
        with use_rng(np.random.default_rng(number)):
            await asyncio.sleep(0.001 * (number % 3))
            return [(await model.ainvoke(TASK)).content for _ in range(2)]

    first = await asyncio.gather(*map(particle, range(8)))
    again = await asyncio.gather(*map(particle, reversed(range(8))))
    assert first == again[::-1]
    assert len({text for texts in first for text in texts}) > 8


async def test_a_particles_stream_takes_precedence_over_the_models_seed(model_folder):
    model = EmbeddedChatModel(model=str(model_folder), max_tokens=12, seed=5)
    assert model.invoke(TASK).content == model.invoke(TASK).content
    with use_rng(np.random.default_rng(0)):
        assert len({(await model.ainvoke(TASK)).content for _ in range(5)}) > 2


async def test_candidates_share_one_prompt_and_its_usage(model):
    handler = UsageMetadataCallbackHandler()
    result = await model.agenerate([[HumanMessage("Goal: craft iron rod")]], n=5, seed=1, callbacks=[handler])
    messages = [generation.message for generation in result.generations[0]]
    assert len({message.content for message in messages}) > 2
    usages = [message.usage_metadata for message in messages if message.usage_metadata]
    assert len(usages) == 1
    assert usages[0]["output_tokens"] > len(messages)
    # The first candidate equals the single answer with the same seed.
    assert messages[0].content == model.invoke("Goal: craft iron rod", seed=1).content
    assert sum(usage["input_tokens"] for usage in handler.usage_metadata.values()) == usages[0]["input_tokens"]


def test_a_second_turn_reads_its_past_from_the_cache(model):
    first = model.invoke([SystemMessage("Goal: craft jade lamp"), HumanMessage("Got 2 silk")], seed=1)
    known = first.usage_metadata["total_tokens"] - 1  # the last token was generated, but not read
    second = model.invoke(
        [SystemMessage("Goal: craft jade lamp"), HumanMessage("Got 2 silk"), first, HumanMessage("Got 1 clay")]
    )
    cached = second.usage_metadata["input_token_details"]["cache_read"]
    assert 10 < cached <= known
    assert cached >= first.usage_metadata["input_tokens"]


def test_a_stop_text_ends_the_answer_and_is_not_part_of_it(model):
    whole = model.invoke(TASK, seed=4, max_tokens=40).content
    middle = whole[len(whole) // 2 : len(whole) // 2 + 3]
    expected = whole[: whole.index(middle)]
    answer = model.invoke(TASK, seed=4, max_tokens=40, stop=[middle])
    assert answer.content == expected
    assert answer.response_metadata["finish_reason"] == "stop"
    assert "".join(chunk.content for chunk in model.stream(TASK, seed=4, max_tokens=40, stop=[middle])) == expected


def test_max_tokens_and_the_context_limit_the_answer(model):
    answer = model.invoke(TASK, max_tokens=2, seed=11)
    assert answer.usage_metadata["output_tokens"] <= 2
    assert answer.response_metadata["finish_reason"] == "length"
    with pytest.raises(ConfigurationError, match="512 tokens"):
        model.invoke(" clay" * 600)
    near = model.invoke(" clay" * 505, max_tokens=64)
    assert near.usage_metadata["total_tokens"] <= 512


def test_top_p_keeps_the_likeliest_tokens_only(model):
    greedy = model.invoke(TASK, temperature=0).content
    assert {model.invoke(TASK, top_p=1e-6).content for _ in range(5)} == {greedy}


def test_callers_in_threads_and_loops_are_served_together(model):
    expected = [model.invoke(TASK, seed=i).content for i in range(16)]

    def call(number):
        if number % 2:
            return asyncio.run(model.ainvoke(TASK, seed=number)).content
        return model.invoke(TASK, seed=number).content

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(call, range(16))) == expected


async def test_a_cancelled_call_leaves_the_batch(model, slow_steps):
    expected = [model.invoke(TASK, seed=i).content for i in range(4)]
    lengths = [model.invoke(TASK, seed=i, max_tokens=40).usage_metadata["output_tokens"] for i in range(20)]
    widths = slow_steps(model)
    victim = asyncio.create_task(model.ainvoke(TASK, max_tokens=40, seed=int(np.argmax(lengths))))
    others = [asyncio.create_task(model.ainvoke(TASK, seed=i)) for i in range(4)]
    while not widths:
        await asyncio.sleep(0.001)
    victim.cancel()
    assert [answer.content for answer in await asyncio.gather(*others)] == expected
    with pytest.raises(asyncio.CancelledError):
        await victim
    assert len(widths) < max(lengths) - 1


def test_a_closed_event_loop_does_not_affect_other_callers(model, slow_steps):
    expected = model.invoke(TASK, seed=3).content
    widths = slow_steps(model)
    loop, engine = asyncio.new_event_loop(), model._engine()

    async def ask_and_leave():
        request = model._request(engine, [HumanMessage(TASK)], None, {"seed": 3})
        engine.batcher._submit(_Ticket(request, loop.create_future()))

    loop.run_until_complete(ask_and_leave())
    loop.close()
    assert model.invoke(TASK, seed=3).content == expected
    assert widths


async def test_a_failure_of_the_engine_reaches_every_caller_and_the_next_call_works(model, monkeypatch):
    decoder = model._engine().batcher.decoder

    def broken(tokens):
        raise FloatingPointError("broken step")

    with monkeypatch.context() as patch:
        patch.setattr(decoder, "step", broken)
        results = await asyncio.gather(*(model.ainvoke(TASK, seed=3) for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [FloatingPointError] * 3
        with pytest.raises(FloatingPointError):
            model.invoke(TASK, seed=3)
        with pytest.raises(FloatingPointError):
            list(model.stream(TASK, seed=3))
    assert (await model.ainvoke(TASK, seed=3)).content == model.invoke(TASK, seed=3).content


def test_bad_settings_are_refused(model, model_folder):
    for bad in ({"temperature": -1}, {"top_p": 0}, {"max_tokens": 0}, {"n": 0}, {"temprature": 1}):
        with pytest.raises(ValidationError):
            EmbeddedChatModel(model=str(model_folder), **bad)
    calls: list[dict[str, object]] = [
        {"temperature": -1},
        {"top_p": 2},
        {"n": 1000},
        {"stop": [""]},
        {"top_logprobs": 3},
        {"tempe": 1},
    ]
    for setting in calls:
        with pytest.raises(ConfigurationError):
            model.invoke(TASK, **setting)
    with pytest.raises(ConfigurationError, match="text only"):
        model.invoke([HumanMessage([{"type": "image_url", "image_url": {"url": "x"}}])])
    with pytest.raises(ConfigurationError, match="no model 'nowhere'"):
        EmbeddedChatModel(model="nowhere").invoke(TASK)


def test_a_stream_of_several_candidates_is_the_first_in_a_single_chunk(model):
    (only,) = [chunk for chunk in model.stream(TASK, n=3, seed=1) if chunk.content]
    assert only.content == model.invoke(TASK, seed=1).content


async def test_token_callbacks_receive_an_invoke(model):
    events = [event async for event in model.astream_events(TASK, version="v2", seed=1)]
    streamed = "".join(event["data"]["chunk"].content for event in events if event["event"] == "on_chat_model_stream")
    assert streamed == model.invoke(TASK, seed=1).content


def test_a_model_can_be_copied_and_pickled_after_use(model):
    expected = model.invoke(TASK, seed=1).content
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model.bind(seed=1)):
        assert twin.invoke(TASK, seed=1).content == expected


async def test_concurrent_callers_share_batches(model, slow_steps):
    widths = slow_steps(model)
    answers = await asyncio.gather(*(model.ainvoke(TASK, seed=i) for i in range(15)))
    generated = sum(answer.usage_metadata["output_tokens"] for answer in answers)
    assert max(widths) >= 10
    assert len(widths) < generated / 4


def test_a_sequential_caller_does_not_wait_for_others(model):
    model.invoke(TASK, temperature=0, max_tokens=1)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        model.invoke(TASK, temperature=0, max_tokens=1)
        times.append(time.perf_counter() - start)
    # A generous bound for a busy machine; waiting 2 ms would double the time of a call of one token.
    assert min(times) < 0.01
