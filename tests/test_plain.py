"""A run as plain values, and in 20 lines."""

from __future__ import annotations

import json
from collections import namedtuple
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from enum import Enum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from uuid import UUID

import numpy as np
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from pydantic import BaseModel

from amc_agents.population.open_run import StreamedRun
from amc_agents.population.wrap import amc
from amc_agents.run import Run
from amc_agents.smc import AtSteps, EveryStep
from amc_agents.types import DEEPEST, Task, plain
from amc_agents.usage import Usage
from tests.arguments import arguments
from tests.population.worlds import ReturnSoFar, number_agent, start, sum_world


@dataclass(slots=True)
class Data:
    number: int
    more: object = None


class Model(BaseModel):
    text: str = "a"


class Broken(BaseModel):
    def model_dump(self, **_):
        raise RuntimeError("no")


class Colour(Enum):
    RED = "red"


Pair = namedtuple("Pair", "left right")
CASES = [
    (None, None),
    (True, True),
    (7, 7),
    (-(2**63), -(2**63)),
    (2**63, "0x8000000000000000"),
    (float("nan"), None),
    (float("-inf"), None),
    ("Zürich", "Zürich"),
    ("a\ud800b", "a?b"),
    (np.float64("nan"), None),
    (np.int64(3), 3),
    (np.bool_(True), True),
    (np.array([[1.5, np.inf], [0, 1]])[:, ::-1], [[None, 1.5], [1.0, 0.0]]),
    (np.array([object()]), "<numpy.ndarray>"),
    ({("a", 1): 2, 3: 4, None: 5}, {"['a', 1]": 2, "3": 4, "None": 5}),
    (MappingProxyType({"a": (1, {2})}), {"a": [1, [2]]}),
    (Data(1, Data(2)), {"number": 1, "more": {"number": 2, "more": None}}),
    (Pair(1, [2]), {"left": 1, "right": [2]}),
    (Model(), {"text": "a"}),
    (Broken(), f"<{__name__}.Broken>"),
    (Data, "<builtins.type>"),
    (Model, "<pydantic._internal._model_construction.ModelMetaclass>"),
    (Colour.RED, "red"),
    (date(2026, 1, 2), "2026-01-02"),
    (Path("a/b"), "a/b"),
    (Decimal("1.50"), "1.50"),
    (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (b"key", "<builtins.bytes>"),
    (object(), "<builtins.object>"),
]


@pytest.mark.parametrize(("value", "expected"), CASES, ids=lambda value: type(value).__name__)
def test_any_value_becomes_json(value, expected):
    found = plain(value)
    assert found == expected
    assert json.loads(json.dumps(found, allow_nan=False)) == expected


def test_messages_keep_what_a_client_reads():
    found = plain({"messages": [HumanMessage("hello", id="1"), AIMessage("hm", tool_calls=[])]})
    assert [one["type"] for one in found["messages"]] == ["human", "ai"]
    assert (found["messages"][0]["content"], found["messages"][0]["id"]) == ("hello", "1")


def test_what_holds_itself_comes_to_an_end():
    loop: list[object] = []
    loop.append(loop)
    assert json.dumps(plain(loop)).count("[") == DEEPEST
    assert "<builtins.list>" in json.dumps(plain(loop))


# --- the run -----------------------------------------------------------------------------------------------------


@cache
def run_of(n_particles=3, length=4, resample=AtSteps(2), **more):
    graph = amc(
        number_agent(),
        ReturnSoFar(),
        **arguments(
            environment=lambda state: sum_world(state, length),
            n_particles=n_particles,
            resample=resample,
            seed=1,
            **more,
        ),
    )
    return graph.run(start())


def test_a_run_is_json_with_its_returns():
    run = run_of()
    found = json.loads(json.dumps(run.as_plain(), allow_nan=False))
    assert found["best"]["return_"] == run.best.return_
    assert found["population"]["returns"] == [one.return_ for one in run.population.trajectories]
    assert found["history"][0]["ancestors"] == run.history[0].ancestors.tolist()
    assert found["usage"]["policy"]["calls"] == found["usage_by_model"]["policy"][""]["calls"] == 12


def test_langgraphs_encoder_takes_a_run_whatever_it_holds():
    serde = pytest.importorskip("langgraph_api.serde", reason="needs langgraph-cli[inmem], of the [dev] extra")
    run = run_of()
    assert json.loads(serde.json_dumpb(run))["usage"] == run.as_plain()["usage"]
    odd = replace(run, best=replace(run.best, task=Task("t", "x", payload={("a", 1): 2**70})), seed=2**70)
    with pytest.raises(TypeError):
        serde.json_dumpb(odd)
    assert json.loads(serde.json_dumpb({"run": StreamedRun.of(odd)})) == {"run": odd.as_plain()}


def test_a_streamed_run_is_the_run_itself():
    run = run_of()
    streamed = StreamedRun.of(run)
    assert streamed.best is run.best
    assert type(streamed.received()) is Run
    assert type(run) is Run


MANY_NOTES = tuple(f"step {step}: the critic failed\nand \x1b[31m said so at length {'x' * 300}" for step in range(50))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "settings",
    [
        {"n_particles": 15, "length": 50, "resample": EveryStep()},
        pytest.param({"n_particles": 500}, marks=pytest.mark.thorough),
        {"n_particles": 1},
    ],
    ids=str,
)
def test_a_run_is_shown_in_twenty_lines(settings):
    played = run_of(**settings)
    for notes in ((), ("one",), MANY_NOTES):
        run = replace(played, notes=notes, usage={f"role {n}": Usage(1, 10) for n in range(9)})
        assert repr(run) == str(run)
        lines = repr(run).splitlines()
        assert len(lines) <= 20
        assert max(map(len, lines)) <= 180
        assert repr(run).replace("\n", "").isprintable()


def test_the_summary_says_what_a_reader_looks_for():
    run = run_of()
    shown = repr(replace(run, notes=("a note",), log_evidence=1.25))
    step, ess = run.history[0].step, run.history[0].ess
    for part in (
        f"Run of task 'count': return {run.best.return_:g}",
        f'particle {run.best_index} by "return" (rewards were seen)',
        "N = 3; 4 to 4 steps",
        f"1 time: step {step} (ESS {ess:.1f})",
        "log Z      1.25",
        "policy: 12 calls",
        "note       a note",
        "seed 1",
    ):
        assert part in shown
    assert "4 steps, done" in shown
    unnamed = replace(run, best=replace(run.best, task=replace(run.best.task, id="")))
    assert repr(unnamed).startswith("Run of 'Say numbers; their sum is your return.': return")
    assert "2 retired (finished, and their slots given to others)" in repr(
        replace(run, history=(replace(run.history[0], retired=(0, 1)),))
    )
    assert "4 steps, cut at the step limit" in repr(replace(run, best=replace(run.best, truncated=True)))
    hidden = repr(run_of(hide_rewards=True))
    assert 'by "value" (no reward was seen: deployable)' in hidden
    without = repr(replace(run, config={**run.config, "rewards": None}))
    assert "return" not in without.replace('by "return"', "").replace("sum is your return", ""), "it has none"
    assert "no rewards, value" in without


@pytest.mark.parametrize(
    ("model", "told"), [("amc_agents:x", "no price for amc_agents:x"), ("", "no price for an unnamed model")]
)
def test_the_summary_names_what_has_no_price(model, told):
    used = Usage(2, 1000, 10, missing=1)
    run = replace(run_of(), usage={"policy": used}, usage_by_model={"policy": {model: used}})
    assert "2 calls, 1 without reported usage (their tokens are unknown), 1,000 tokens in (0 c" in repr(run)
    assert told in repr(run)
