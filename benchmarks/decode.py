"""Decoding speed of the shipped policy: our numpy forward pass beside transformers on torch, in one run.

    python benchmarks/decode.py [--tokens 64]

Both run behind the same batching engine, one thread each, on the same prompts and seeds. Prints tokens per second and
the ratio numpy / torch: above 0.5, numpy stays (nothing to install); the answers themselves are equal.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

import torch

from amc_agents.envs.crafting import generate_task
from amc_agents.models.embedded import EmbeddedChatModel, model_folder
from amc_agents.models.transformers_chat import TransformersChatModel


async def tokens_per_second(model: Any, n_callers: int, repeats: int = 5) -> float:
    """Median over repeats; all callers ask at once."""
    prompts = [generate_task(seed, "benchmark", optimal_steps=(8, 14)).instruction for seed in range(n_callers)]
    rates = []
    for repeat in range(repeats + 1):
        begun = time.perf_counter()
        answers = await asyncio.gather(
            *(model.ainvoke(prompt, seed=repeat * 1000 + i) for i, prompt in enumerate(prompts))
        )
        seconds = time.perf_counter() - begun
        written: int = sum(answer.usage_metadata["output_tokens"] for answer in answers)
        rates.append(written / seconds)
    return sorted(rates[1:])[repeats // 2]


async def measure(n_tokens: int) -> dict[str, dict[str, float]]:
    settings: dict[str, Any] = {"max_tokens": n_tokens, "temperature": 1.5}
    ours = EmbeddedChatModel(**settings)
    theirs = TransformersChatModel(model=str(model_folder("crafting")), **settings)
    found = {}
    for n_callers in (1, 15, 60):
        numpy_rate, torch_rate = await tokens_per_second(ours, n_callers), await tokens_per_second(theirs, n_callers)
        found[f"{n_callers} callers"] = {
            "numpy_tokens_per_s": round(numpy_rate), "torch_tokens_per_s": round(torch_rate),
            "numpy_over_torch": round(numpy_rate / torch_rate, 2),
        }  # fmt: skip
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=64)
    torch.set_num_threads(1)
    print(json.dumps(asyncio.run(measure(parser.parse_args().tokens)), indent=2))
