"""Measure what OpenTelemetry traces cost a run, as ratios to the same run without traces.

    python benchmarks/tracing.py [--pairs 40]

An instant model, N = 15 particles, T = 10 and 50 steps, resampled every ten steps from step 4; each particle makes a
request to a model and a step of its world per step. Spans are batched by the SDK, encoded as OTLP and discarded.

1. `agents`: CPU time of the thread in which the agents run. Bound 1.03.
2. `process`: CPU time of all threads, until every span is encoded. No bound: spans are made and encoded in other
   threads, while a real model is waited for.

3. `calls`: the number of function calls of a run in its own thread, which does not depend on the load of the machine.

Medians and quartiles of the ratios of paired runs, in alternating order. The exit code is 1 if a ratio exceeds its
bound.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import logging
import pstats
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from overhead import N, T, as_particles, instant_agent, wrapped

from amc_agents.smc import AtSteps
from amc_agents.telemetry import flush, instrument, uninstrument

BOUND = 1.03


class Encoding(SpanExporter):
    """Encodes spans, and counts them."""

    n_spans = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializeToString()
        self.n_spans += len(spans)
        return SpanExportResult.SUCCESS


async def times(graph: Any, provider: TracerProvider | None) -> tuple[float, float]:
    """Return the CPU seconds of this thread and of the process for a run; None: without traces."""
    if provider is not None:
        instrument(tracer_provider=provider)
    gc.collect()
    began = time.thread_time(), time.process_time()
    await wrapped(graph)
    agents = time.thread_time() - began[0]
    flush()
    process = time.process_time() - began[1]
    uninstrument()
    return agents, process


async def calls(graph: Any, provider: TracerProvider | None) -> int:
    """Return the number of function calls of a run."""
    if provider is not None:
        instrument(tracer_provider=provider)
    profile = cProfile.Profile()
    with profile:
        await wrapped(graph)
    uninstrument()
    return int(vars(pstats.Stats(profile))["total_calls"])


async def measure(n_steps: int, pairs: int) -> dict[str, Any]:
    exporter, provider = Encoding(), TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    graph = as_particles(instant_agent(), AtSteps(*range(4, n_steps, 10)), N, n_steps, seed=0)
    await times(graph, None)
    await times(graph, provider)
    n_spans = exporter.n_spans
    gc.freeze()
    ratios = []
    for number in range(pairs):
        order = (provider, None) if number % 2 else (None, provider)
        first, second = [await times(graph, each) for each in order]
        without, traced = (second, first) if number % 2 else (first, second)
        ratios.append([traced[0] / without[0], traced[1] / without[1]])
    gc.unfreeze()
    off, on = await calls(graph, None), await calls(graph, provider)
    provider.shutdown()
    low, median, high = np.percentile(ratios, [25, 50, 75], axis=0).tolist()
    return {
        "spans": n_spans,
        "pairs": pairs,
        "agents": {"ratio": median[0], "quartiles": [low[0], high[0]], "bound": BOUND},
        "process": {"ratio": median[1], "quartiles": [low[1], high[1]]},
        "calls": {"ratio": on / off},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40)
    pairs = parser.parse_args().pairs
    results = {f"T = {n}": asyncio.run(measure(n, max(3, round(share * pairs)))) for n, share in ((T, 1), (50, 0.4))}
    print(json.dumps(results, indent=2))
    return int(any(row["agents"]["ratio"] > BOUND for row in results.values()))


if __name__ == "__main__":
    logging.getLogger("amc_agents").setLevel(logging.ERROR)  # The particles are identical on purpose.
    sys.exit(main())
