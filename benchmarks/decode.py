"""Decoding speed of the shipped policy: the numpy forward pass compared with transformers on torch.

    python benchmarks/decode.py [--tokens 64]

Both use the same batching engine with one thread each, on the same prompts and seeds, and give the same answers. Prints
tokens per second and the ratio numpy / torch. Above 0.5, numpy is preferred, because it needs no installation.
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
    """Return the median rate over repeats of concurrent callers."""
    prompts = [generate_task(seed, "benchmark", optimal_steps=(8, 14)).instruction for seed in range(n_callers)]
    rates = []
    for repeat in range(repeats + 1):
        begun = time.perf_counter()
        answers = await asyncio.gather(
            *(model.ainvoke(prompt, seed=repeat * 1000 + i) for i, prompt in enumerate(prompts))
        )
        seconds = time.perf_counter() - begun
        generated: int = sum(answer.usage_metadata["output_tokens"] for answer in answers)
        rates.append(generated / seconds)
    return sorted(rates[1:])[repeats // 2]


async def measure(n_tokens: int) -> dict[str, dict[str, float]]:
    settings: dict[str, Any] = {"max_tokens": n_tokens, "temperature": 1.5}
    numpy_model = EmbeddedChatModel(**settings)
    torch_model = TransformersChatModel(model=str(model_folder("crafting")), **settings)
    rates = {}
    for n_callers in (1, 15, 60):
        numpy_rate = await tokens_per_second(numpy_model, n_callers)
        torch_rate = await tokens_per_second(torch_model, n_callers)
        rates[f"{n_callers} callers"] = {
            "numpy_tokens_per_s": round(numpy_rate), "torch_tokens_per_s": round(torch_rate),
            "numpy_over_torch": round(numpy_rate / torch_rate, 2),
        }  # fmt: skip
    return rates


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=64)
    torch.set_num_threads(1)
    print(json.dumps(asyncio.run(measure(parser.parse_args().tokens)), indent=2))
