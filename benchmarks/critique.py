"""Cost of a PNLC decision relative to a plain call of the same model: wall time, requests, tokens, round trips.

    python benchmarks/critique.py [--runs 10]

A local HTTP server answers every request in 100 ms: the policy, which also proposes the goals, and the embeddings if
they come from a server. Tokens are words, of a conversation of eight steps in the crafting world. Bounds: 4.5 for one
refinement round with embeddings in this process, 5.5 with an embedding server. Exits with 1 if a bound or the number
of round trips is violated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any

import numpy as np
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from amc_agents.config import Config
from amc_agents.critics.goal.checkpoint import GoalCheckpoint, GoalNetwork, GoldenTriple
from amc_agents.critics.goal.critic import GoalValueCritic
from amc_agents.critics.goal.embeddings import TextEmbeddings, as_embeddings
from amc_agents.critics.verdict.critic import VerdictCritic
from amc_agents.critics.verdict.top_k import TopKReader
from amc_agents.envs.crafting import generate_task
from amc_agents.pnlc.model import CritiqueRefineModel, critique_refine_model
from amc_agents.usage import Meter, metering
from benchmarks.local_server import DIMENSIONS
from benchmarks.overhead import local_server

STEPS = [("get 2 oak", "Got 2 oak"), ("get 1 clay", "Got 1 clay"), ("craft 1 plank using 1 oak", "Crafted 1 plank"),
         ("inventory", "Inventory: [oak] (1) [clay] (1) [plank] (1)")] * 2  # fmt: skip
CONVERSATION: list[BaseMessage] = [HumanMessage(generate_task(7, "examples", optimal_steps=(6, 8)).instruction)]
for action, observation in STEPS:
    CONVERSATION += [AIMessage(f"Thought: I need what the recipe says.\nAction: {action}"), HumanMessage(observation)]
TURN = "Thought: One more oak is missing for the second plank, so I get it first.\nAction: get 1 oak"
MARKED = {
    "to be good": "Goal: Got 1 oak\nGoal: Crafted 1 oak gate",
    "to be bad": "Goal: Could not find oak\nGoal: Could not execute: not enough plank",
    "its number and its probability": "1: 0.4\n2: 0.2\n3: 0.5\n4: 0.7",
    "Choice: <its number>": "Choice: 1",
    "Take that step now": "Thought: I craft the plank first.\nAction: craft 1 plank using 1 oak",
}
"""The policy's answer to each kind of question."""
REFINES = "Diagnosis: The oak is there already.\nDecision: REFINE\nThought: I craft the plank first."
KEEPS = "Diagnosis: The oak is needed.\nDecision: KEEP"
PLAIN = "plain call (ReAct)"


def policy(url: str, reply: str, turns: list[str] | None = None) -> ChatOpenAI:
    marked = {**MARKED, "Decision: <KEEP": reply}
    asked = {"replies": turns or [TURN], "marked": marked, "count_words": True}
    return ChatOpenAI(base_url=url, api_key=SecretStr("none"), model="local", extra_body=asked)


async def goal_critic(embeddings: TextEmbeddings, dimensions: int) -> GoalValueCritic:
    """Build a critic of the paper's size with random weights: only its cost matters."""
    rng, weights = np.random.default_rng(0), {}
    for name, texts in {"q": 3, "v": 2}.items():
        inputs = texts * dimensions + texts - 1
        for layer, (before, after) in enumerate([(inputs, 64), (64, 64), (64, 1)]):
            weights[f"{name}.{layer}.weight"] = rng.normal(0, before**-0.5, (after, before)).astype(np.float32)
            weights[f"{name}.{layer}.bias"] = np.zeros(after, dtype=np.float32)
    network = GoalNetwork(weights, scale=dimensions**0.5)
    vectors = (await embeddings.embed(["state", "thought", "goal"])).vectors.reshape(1, 3, dimensions)
    q = network.q(vectors[:, 0], vectors[:, 1], vectors[:, 2])
    golden = (GoldenTriple("state", "thought", "goal", float(q[0])),)
    checkpoint = GoalCheckpoint(network, dimensions, embeddings.spec, "none", golden, vectors)
    return GoalValueCritic(checkpoint, embeddings=embeddings, remembered=0)


async def variants(url: str) -> dict[str, tuple[CritiqueRefineModel, float, int]]:
    """Return name -> (model, bound of the ratio, round trips including the critic's)."""
    here = await goal_critic(as_embeddings("hashed:512"), 512)
    server = as_embeddings(f"vllm:{url.removesuffix('/v1')}?model=local")
    there = await goal_critic(server, DIMENSIONS)
    refines, keeps = policy(url, REFINES), policy(url, KEEPS)
    several = policy(url, KEEPS, [f"Thought: try {i}\nAction: get {i} clay" for i in range(1, 6)])
    verdict = VerdictCritic(TopKReader(policy(url, KEEPS), name="local"))

    def deciding(model: ChatOpenAI, critic: Any, **settings: Any) -> CritiqueRefineModel:
        return critique_refine_model(model, critic, config=Config(), **settings)

    return {
        "thought kept": (deciding(keeps, here), 3.5, 4),
        "one refinement": (deciding(refines, here), 4.5, 5),
        "thought kept, embedding server": (deciding(keeps, there), 4.5, 4),
        "one refinement, embedding server": (deciding(refines, there), 5.5, 5),
        "best of 5 thoughts": (deciding(several, here, refine=False), 1.6, 2),
        "best of 5 thoughts, embedding server": (deciding(several, there, refine=False), 2.6, 2),
        "without goals (a verdict)": (deciding(refines, verdict, critique="value"), 4.5, 4),
        "ReAct+Replan": (deciding(refines, None, critique="self"), 5.5, 5),
        "Self-Plan": (deciding(several, None, critique="self", refine=False), 2.5, 2),
    }


async def seconds(chat: Any, runs: int) -> float:
    await chat.ainvoke(CONVERSATION)
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        await chat.ainvoke(CONVERSATION)
        times.append(time.perf_counter() - start)
    return float(np.median(times))


async def used(decides: CritiqueRefineModel) -> dict[str, Any]:
    """Return the requests and tokens of a decision."""
    records: list[dict[str, Any]] = []
    with metering(Meter()):
        await decides.model_copy(update={"sink": records.append}).ainvoke(CONVERSATION)
    (record,) = records
    usage = record["usage"]
    return {
        "thoughts": len(record["thoughts"]),
        "round_trips": record["round_trips"],
        "requests": {role: counts["calls"] for role, counts in usage.items()},
        "tokens": {role: counts["input_tokens"] + counts["output_tokens"] for role, counts in usage.items()},
    }


async def measure(runs: int) -> dict[str, dict[str, Any]]:
    with local_server() as url:
        model = policy(url, KEEPS)
        plain = await seconds(model, runs)
        answer = await model.ainvoke(CONVERSATION)
        results: dict[str, dict[str, Any]] = {PLAIN: {"s": round(plain, 4), "tokens": answer.usage_metadata}}
        for name, (decides, bound, trips) in (await variants(url)).items():
            taken = await seconds(decides, runs)
            results[name] = {"s": round(taken, 4), "ratio": round(taken / plain, 2), "bound": bound,
                           **await used(decides), "expected_round_trips": trips}  # fmt: skip
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
    return int(any(violated))


if __name__ == "__main__":
    sys.exit(main())
