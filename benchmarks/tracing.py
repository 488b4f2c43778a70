"""Measure what OpenTelemetry traces cost a run, as ratios to the same run without traces.

    PYTHONPATH=integrations/telemetry python benchmarks/tracing.py [--pairs 40]

An instant model, N = 15 particles, T = 10 and 50 steps, resampled every ten steps from step 4; each particle makes a
request to a model and a step of its world per step. Spans are batched by the SDK, encoded as OTLP and discarded.

1. `agents`: CPU time of the thread in which the agents run. Bound 1.03.
2. `process`: CPU time of all threads, until every span is encoded. No bound: spans are made and encoded in other
   threads, while a real model is waited for.

3. `calls`: the number of function calls of a run in its own thread, which does not depend on the load of the machine.

Medians of the ratios of paired runs in alternating order, with their 95% intervals (bootstrap) and the ratios'
quartiles. The exit code is 1 if a median exceeds its bound.
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
from amc_agents_telemetry.otel_spans import OtelTracer
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from amc_agents.runtime.tracing import set_tracer
from amc_agents.smc import AtSteps
from benchmarks.overhead import N, T, as_particles, instant_agent, wrapped

BOUND = 1.03
FLUSH_LIMIT_S = 30.0


class Encoding(SpanExporter):
    """Encodes spans, and counts them."""

    n_spans = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializeToString()
        self.n_spans += len(spans)
        return SpanExportResult.SUCCESS


async def times(graph: Any, tracer: OtelTracer | None) -> tuple[float, float]:
    """Return the CPU seconds of this thread and of the process for a run; None: without traces."""
    set_tracer(tracer)
    gc.collect()
    began = time.thread_time(), time.process_time()
    await wrapped(graph)
    agents = time.thread_time() - began[0]
    if tracer is not None:
        tracer.flush(FLUSH_LIMIT_S)
    return agents, time.process_time() - began[1]


async def calls(graph: Any, tracer: OtelTracer | None) -> int:
    """Return the number of function calls of a run."""
    set_tracer(tracer)
    profile = cProfile.Profile()
    with profile:
        await wrapped(graph)
    return int(vars(pstats.Stats(profile))["total_calls"])


async def measure(n_steps: int, pairs: int) -> dict[str, Any]:
    exporter, provider = Encoding(), TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    # A single tracer, switched on and off: to set up a new one before each traced run makes that run itself slower.
    tracer = OtelTracer(provider, None, content=False)
    graph = as_particles(instant_agent(), AtSteps(*range(4, n_steps, 10)), N, n_steps, seed=0)
    await times(graph, None)
    await times(graph, tracer)
    n_spans = exporter.n_spans
    gc.freeze()
    ratios = []
    for number in range(pairs):
        order = (tracer, None) if number % 2 else (None, tracer)
        first, second = [await times(graph, each) for each in order]
        without, traced = (second, first) if number % 2 else (first, second)
        ratios.append([traced[0] / without[0], traced[1] / without[1]])
    gc.unfreeze()
    off, on = await calls(graph, None), await calls(graph, tracer)
    tracer.stop()
    provider.shutdown()
    low, median, high = np.percentile(ratios, [25, 50, 75], axis=0).tolist()
    draws = np.random.default_rng(0).choice(len(ratios), (2000, len(ratios)))
    interval = np.percentile(np.median(np.asarray(ratios)[draws], axis=1), [2.5, 97.5], axis=0).T.tolist()
    return {
        "spans": n_spans,
        "pairs": pairs,
        "agents": {"ratio": median[0], "interval": interval[0], "quartiles": [low[0], high[0]], "bound": BOUND},
        "process": {"ratio": median[1], "interval": interval[1], "quartiles": [low[1], high[1]]},
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
