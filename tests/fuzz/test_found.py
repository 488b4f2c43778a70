"""Inputs that once ended in an accidental error, or in a message of thousands of characters."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fuzz.parsers import ANSWER, ATIF, CHAT, LANGSMITH, OTLP, PARSERS, ROW, VERSION
from tests.fuzz.test_parsers import LONGEST, error_of

DEEP = '{"a":' * 5000
OBSERVED = {"source": "agent", "message": "x", "observation": {"results": [None]}}
SPAN = OTLP["resourceSpans"][0]["scopeSpans"][0]["spans"][0]


def logged(record):
    return json.dumps(record).encode()


def spans(**changes):
    return logged({"resourceSpans": [{"scopeSpans": [{"spans": [{**SPAN, **changes}]}]}]})


FOUND: dict[str, list[Any]] = {
    "critic of a call": [
        "9" * 400,
        f"vllm:http://host?{'9' * 400}=1",
        f"http://{'9' * 400}",
        f"judge:m?low={'9' * 400}",
        "vllm:http:///v1\ud800?",
        "classify:http://host/\ud800",
        "verdict:http://\ud800",
    ],
    "prior": ["Beta(" + "9" * 500 + "x, 2)", "Beta(" + "1" * 5000 + "x, 2)"],
    "hypothesis": [DEEP],
    "hypothesis under a prior": [
        '{"a": 0.5, "b": {"x": null, "y": 0.5}}',
        '{"a": 0.5, "b": {"x": "1", "y": 0.5}}',
        DEEP,
    ],
    "experience": ["Step 1\nAction: a\nObservation: b\nReward: much"],
    "tool calls of an action": ["[" * 5000, DEEP],
    "calibration": [10**400, "1" * 5000, {"kind": "isotonic", "value": [None], "calibrated": [10**400]}],
    "posterior record": [{**VERSION, "amc_posterior": 10**400}, {**VERSION, "evidence": {"must_keep": [1] * 100}}],
    "messages": [
        {**ANSWER, "content": [{"type": "reasoning", "reasoning": None}]},
        {**ANSWER, "content": [{"type": [], "text": "a"}]},
    ],
    "dataset rows": [
        [{**ROW, "steps": None}],
        [{**ROW, "steps": [{**ROW["steps"][0], "message_ids": None}]}],
        [{**ROW, "steps": [{**ROW["steps"][0], "reward": None}]}],
        [{**ROW, "settings": "no JSON"}],
        [{**ROW, "policy": []}],
        [{**ROW, "return": ["1"]}],
    ],
    "chat logs": [logged({**CHAT, "messages": [{"role": "assistant", "tool_calls": "x"}, *CHAT["messages"]]})],
    "atif logs": [
        logged({**ATIF, "steps": [{**OBSERVED, "observation": wrong}]}) for wrong in ({"results": [None]}, True)
    ],
    "langsmith logs": [
        logged({**LANGSMITH, "extra": {"metadata": True}}),
        logged({**LANGSMITH, "metadata": {"score": 10**400}}),
        logged({**LANGSMITH, "extra": "[" * 5000}),
    ],
    "otlp logs": [
        spans(traceId=[]),
        spans(traceId=None),
        spans(traceId="\ud800"),
        spans(startTimeUnixNano=float("inf")),
    ],
}
"""Name of a parser -> inputs."""


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_stays_mended(name):
    (parser,) = (parser for parser in PARSERS if parser.name == name)
    for given in FOUND[name]:
        assert len(error_of(parser, given) or "") <= LONGEST
