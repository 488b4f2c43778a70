"""Cost of a LAC decision relative to a plain call of the same model: wall time, requests, tokens, round trips.

    python benchmarks/decision.py [--runs 10]

A local HTTP server answers every request in 100 ms. K = 5 distinct candidates. The verdict critic reads top
log-probabilities, one request per candidate; the forward model sends one request per candidate and imagined step. Two
policies: one that supports `n`, and one that is called K times. Bounds: 2.3 without rollouts, 3.4 with a reflection on
the past step, and 1.15 more per imagined step. Exits with 1 if a bound or the number of round trips is violated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any

import numpy as np
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from amc_agents.config import Config
from amc_agents.critics.verdict.critic import VerdictCritic
from amc_agents.critics.verdict.top_k import TopKReader
from amc_agents.lac.model import ActorCriticModel, actor_critic_model
from amc_agents.usage import Meter, metering
from benchmarks.overhead import local_server

K = 5
CONVERSATION = [
    HumanMessage("Craft an oak gate."),
    AIMessage("Thought: it needs wood\nAction: get 2 oak"),
    HumanMessage("Got 2 oak"),
]
TURNS = [f"Thought: try {number}\nAction: get {number} clay" for number in range(1, K + 1)]
# Never GOOD or BAD, so that every rollout reaches the requested depth.
IMAGINED = ["Observation: Got it\nReflection: Not known yet. This step is UNKNOWN.\nAction: get 1 silk"]
PLAIN = "plain call"
VARIANTS: dict[str, dict[str, Any]] = {
    "no rollout": {},
    "with greedy": {"greedy": True},
    "reflection": {"reflect": True},
    **{f"depth {depth}": {"depth": depth} for depth in (1, 2, 3, 4)},
    **{f"depth {depth}, reflection": {"depth": depth, "reflect": True} for depth in (1, 4)},
}
"""Settings of the decision."""


def bound(settings: dict[str, Any]) -> float:
    return (3.4 if settings.get("reflect") else 2.3) + 1.15 * int(settings.get("depth", 0))


def trips(settings: dict[str, Any]) -> int:
    return 2 + bool(settings.get("reflect")) + int(settings.get("depth", 0))


class OneByOne(BaseChatModel):
    """The same model without `n`: it is called K times."""

    inner: ChatOpenAI

    @property
    def _llm_type(self) -> str:
        return "one-by-one"

    def _generate(self, messages: list[BaseMessage], *more: Any, **call: Any) -> ChatResult:
        raise NotImplementedError("only async calls")

    async def _agenerate(self, messages: list[BaseMessage], *more: Any, **call: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=await self.inner.ainvoke(messages))])


def model(url: str, replies: list[str]) -> ChatOpenAI:
    return ChatOpenAI(base_url=url, api_key=SecretStr("none"), model="local", extra_body={"replies": replies})


def deciding(url: str, settings: dict[str, Any], policy: BaseChatModel) -> ActorCriticModel:
    critic = VerdictCritic(TopKReader(model(url, ["GOOD"]), name="local"))
    return actor_critic_model(policy, critic, k=K, world_model=model(url, IMAGINED), config=Config(), **settings)


async def seconds(chat: Any, runs: int) -> float:
    await chat.ainvoke(CONVERSATION)
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        await chat.ainvoke(CONVERSATION)
        times.append(time.perf_counter() - start)
    return float(np.median(times))


async def used(decides: ActorCriticModel) -> dict[str, Any]:
    """Return the requests and tokens of a decision."""
    records: list[dict[str, Any]] = []
    meter = Meter()
    with metering(meter):
        await decides.model_copy(update={"sink": records.append}).ainvoke(CONVERSATION)
    (record,) = records
    by_role = {role: usage for role, usage in meter.read().items() if role != "policy"}
    policy = record["usage"]["policy"]
    return {
        "candidates": len(record["candidates"]),
        "round_trips": record["round_trips"],
        "requests": {"policy": policy["calls"]} | {role: usage.calls for role, usage in by_role.items()},
        "tokens": {"policy": policy["input_tokens"] + policy["output_tokens"]}
        | {role: usage.tokens for role, usage in by_role.items()},
    }


async def measure(runs: int) -> dict[str, dict[str, Any]]:
    results: dict[str, dict[str, Any]] = {}
    with local_server() as url:
        plain = await seconds(model(url, TURNS), runs)
        results[PLAIN] = {"s": round(plain, 4)}
        takes_n, one_by_one = model(url, TURNS), OneByOne(inner=model(url, TURNS))
        variants = [(name, settings, takes_n) for name, settings in VARIANTS.items()]
        for name, settings, policy in [*variants, ("no rollout, called K times", {}, one_by_one)]:
            decides = deciding(url, settings, policy)
            taken = await seconds(decides, runs)
            results[name] = {
                "s": round(taken, 4), "ratio": round(taken / plain, 2), "bound": round(bound(settings), 2),
                **await used(decides), "expected_round_trips": trips(settings),
            }  # fmt: skip
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    results = asyncio.run(measure(parser.parse_args().runs))
    print("\n".join(f"{name}: {json.dumps(result)}" for name, result in results.items()))
    decisions = [result for name, result in results.items() if name != PLAIN]
    violated = [
        result["ratio"] > result["bound"] or result["round_trips"] != result["expected_round_trips"]
        for result in decisions
    ]
    return int(any(violated) or any(result["candidates"] < K for result in decisions))


if __name__ == "__main__":
    sys.exit(main())
