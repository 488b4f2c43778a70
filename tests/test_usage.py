from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from amc_agents.usage import LANGCHAIN_COUNTS, OPENAI_COUNTS, Meter, Usage, metering, record, reported_usage, total


def test_usages_add_up():
    both = Usage(1, 10, 2, 4) + Usage(2, 5, 1, missing=1)
    assert both == Usage(3, 15, 3, 4, 1)
    assert both.tokens == 18
    assert total({"policy": both, "critic": Usage(1)}) == Usage(4, 15, 3, 4, 1)
    assert total({}) == Usage()


def test_cached_tokens_are_part_of_the_input_of_each_request():
    assert Usage(1, 10, 2, 15) == Usage(1, 10, 2, 10)
    assert Usage(1, 10, 2, 15) + Usage(1, 100) == Usage(2, 110, 2, 10), "not of the input of others"


def test_a_meter_tells_roles_and_models_apart_and_they_agree():
    meter = Meter()
    with metering(meter):
        record("policy", Usage(1, 10), model="openai:small")
        record("policy", Usage(1, 20), model="openai:large")
        record("policy", Usage(1, 30), model="openai:small")
        record("critic", Usage(1, 40))
    record("critic", Usage(1, 1000), model="nobody listens")
    assert meter.by_model() == {
        "policy": {"openai:small": Usage(2, 40), "openai:large": Usage(1, 20)},
        "critic": {"": Usage(1, 40)},
    }
    assert meter.read() == {"policy": Usage(3, 60), "critic": Usage(1, 40)}


def test_a_reading_does_not_change_later():
    meter = Meter()
    meter.add("policy", Usage(1))
    before = meter.by_model()
    meter.add("policy", Usage(1))
    assert before == {"policy": {"": Usage(1)}}


async def test_tasks_started_inside_are_counted_and_others_are_not():
    async def work(tokens):
        await asyncio.sleep(0)
        record("critic", Usage(1, tokens))

    meter, other = Meter(), Meter()
    with metering(meter):
        inside = asyncio.create_task(work(1))
    outside = asyncio.create_task(work(10))
    with metering(meter):
        with metering(other):
            await asyncio.to_thread(record, "critic", Usage(1, 100))
        await work(1000)
    await asyncio.gather(inside, outside)
    assert meter.read() == {"critic": Usage(2, 1001)}
    assert other.read() == {"critic": Usage(1, 100)}


def test_a_meter_counts_from_any_thread():
    meter = Meter()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: meter.add("policy", Usage(1, 1)), range(2000)))
    assert meter.read() == {"policy": Usage(2000, 2000)}


def langchain_counts(read, written, cached):
    return {"input_tokens": read, "output_tokens": written, "input_token_details": {"cache_read": cached}}


def openai_counts(read, written, cached):
    return {"prompt_tokens": read, "completion_tokens": written, "prompt_tokens_details": {"cached_tokens": cached}}


@pytest.mark.parametrize(
    ("make", "names"),
    [(langchain_counts, LANGCHAIN_COUNTS), (openai_counts, OPENAI_COUNTS)],
    ids=["langchain", "openai"],
)
def test_reported_counts(make, names):
    assert reported_usage(make(5, 2, 3), names) == Usage(1, 5, 2, 3)
    assert reported_usage(make(5, None, True), names) == Usage(1, 5)
    assert reported_usage(make(5, -1, "3"), names) == Usage(1, 5)
    for details in ([1], "cached", {names.cached: [1]}, {names.cached: None}, None):
        assert reported_usage({**make(5, 2, 3), names.details: details}, names) == Usage(1, 5, 2)


@pytest.mark.parametrize(
    "counts",
    [None, [], "5", {"prompt_tokens": 5}, {"input_tokens": "5"}, *({"input_tokens": n} for n in (-1, 1.5, True))],
)
def test_counts_that_cannot_be_read_are_missing(counts):
    assert reported_usage(counts, LANGCHAIN_COUNTS) == Usage(calls=1, missing=1)
