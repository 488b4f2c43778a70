"""AMC with the policy and the value model on two vLLM servers.

    amc serve policy crafting --port 8000
    amc serve value crafting --port 8001
    python examples/amc_on_vllm.py http://127.0.0.1:8000 "vllm:http://127.0.0.1:8001"

The policy can be any server with an OpenAI-compatible API. The critic is a string: try `uniform`, or
`embedded:crafting`.
"""

from __future__ import annotations

import os
import sys

import httpx
import numpy as np
from langchain_openai import ChatOpenAI

from amc_agents import AtSteps, amc, text_agent
from amc_agents.envs.crafting import CraftingWorld, generate_task

TASK = generate_task(7, "examples", optimal_steps=(8, 10))


def policy(url):
    """The served chat model, under the name that the server reports."""
    key = os.environ.get("VLLM_API_KEY", "none")
    models = httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"}).raise_for_status().json()
    name = models["data"][0]["id"]
    return ChatOpenAI(base_url=f"{url}/v1", model=name, api_key=key, temperature=0.7, max_tokens=60)


def main(url, critic):
    graph = amc(
        text_agent(policy(url)), critic, environment=lambda state: (CraftingWorld(), TASK),
        n_particles=15, resample=AtSteps(4, 8), beta=0.1, horizon=20, seed=1,
    )  # fmt: skip
    run = graph.run({"messages": [("user", TASK.instruction)]})
    returns = [trajectory.return_ for trajectory in run.population.trajectories]
    print(*[step.action for step in run.best.steps], sep="\n")
    print(f"best return {run.best.return_:g}, mean {np.mean(returns):.2f}")
    for role, usage in run.usage.items():
        print(f"{role}: {usage.calls} requests, {usage.input_tokens} tokens read, {usage.output_tokens} written")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
