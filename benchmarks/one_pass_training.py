"""Compare training a value model in one pass per trajectory with one pass per prefix: states/s, tokens, memory.

    python benchmarks/one_pass_training.py                                            # tiny model, CPU
    python benchmarks/one_pass_training.py --shape llama-3.1-8b --device cuda --dtype bfloat16 --paper-set
    python benchmarks/one_pass_training.py --shape qwen2.5-3b --device cuda --dtype bfloat16

With `--out docs/results/one_pass_training.json`, each command adds its results to that file.

Models have random weights, created from a config on the device, and LoRA of rank 8 on all linear layers. A run is one
optimizer step over a set of trajectories, cut into passes by the trainer's plan. Both ways give the same gradient, use
batches of similar length (or packed ones) and apply the head only to the marks. First, the fastest batch size is
searched for each way, with and without gradient checkpointing. Then runs of both alternate, and ratios are taken
between neighbouring runs.

- The ratio is compared with (T + 1) / 2, the ratio of tokens if all steps have the same length and the task has none. A
  long task increases it (at most to T + 1). Because of attention, the ratio of times is smaller than that of tokens.
- Memory is the peak of the step: on a GPU as torch reports it; on the CPU (Linux) the high-water mark of the resident
  set in a separate process, next to the resident set before the step.
- MFU counts 4 FLOPs per token and parameter (forward, and backward to activations, without embeddings and without
  recomputation), relative to the measured rate of matrix products of the same data type.
- `--paper-set`: three epochs over 80% of 1,100 trajectories of 20 states in steps of 16 trajectories, as for the
  paper's SciWorld model (2 hours on two RTX 6000 Ada). `--limit S` stops after S seconds and extrapolates.

On the CPU, processor time with one thread is measured, because other programs on the machine affect it least.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from amc_agents.training.settings import Objective, ValueTrainingSettings
from amc_agents.training.value.batches import Pass, StepPlan, collate
from amc_agents.training.value.one_pass import loss, scores_at_marks
from amc_agents.training.value.rows import TargetRow
from benchmarks.value_shapes import PAD, SHAPES, Trained, make, prefixes, set_checkpointing, trajectories

PAPER_TRAJECTORIES, PAPER_STATES, PAPER_SHARE, PAPER_EPOCHS, PAPER_BATCH = 1100, 20, 0.8, 3, 16
"""SciWorld in the paper (appendix B, table 7). The share is that of the training set."""
WAYS = ("one pass", "prefixes")


@dataclass(frozen=True)
class Setting:
    """How rows are cut into passes, and how a pass is computed."""

    budget: int
    """Limit for the tokens of a forward pass, padding included."""
    checkpointing: bool = False
    packed: bool = False


class StepCost(NamedTuple):
    """Time and memory of a step."""

    seconds: float
    peak_bytes: int | None
    """None on the CPU."""


class Bench:
    """A model on its device, and a clock for it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.device, self.matmul = arguments.device, arguments.matmul
        self.settings = ValueTrainingSettings(
            dtype=arguments.dtype, device=arguments.device, attention=arguments.attention
        )
        self.trained: Trained = make(arguments.shape, changed(arguments), self.settings)
        self.model = self.trained.model
        self.optimizer = torch.optim.AdamW(
            [parameter for parameter in self.model.parameters() if parameter.requires_grad], lr=1e-5
        )
        self.on_gpu = torch.device(self.device).type == "cuda"

    @cached_property
    def matmul_rate(self) -> float:
        """FLOPs per second of a square matrix product, the median of ten."""
        size = self.matmul or (8192 if self.on_gpu else 1024)
        matrix = torch.randn(size, size, device=self.device, dtype=getattr(torch, self.settings.dtype))
        torch.mm(matrix, matrix)
        seconds = []
        for _ in range(10):
            begun = self.clock()
            torch.mm(matrix, matrix)
            seconds.append(self.clock() - begun)
        return 2 * size**3 / float(np.median(seconds))

    def utilisation(self, tokens_per_second: float) -> float:
        """Return the MFU, counting 4 FLOPs per token and parameter."""
        return round(4 * self.trained.parameters * tokens_per_second / self.matmul_rate, 3)

    def clock(self) -> float:
        if not self.on_gpu:
            return time.process_time() / torch.get_num_threads()
        torch.cuda.synchronize()
        return time.perf_counter()

    def step(self, rows: Sequence[TargetRow], passes: Sequence[Pass], packed: bool) -> None:
        """Take an optimizer step, as the trainer does."""
        for pass_ in passes:
            batch = collate([rows[index] for index in pass_.rows], PAD, packed=packed)
            scores = scores_at_marks(self.model, batch)
            (loss(scores, batch, Objective()) * pass_.share).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def time(self, rows: Sequence[TargetRow], setting: Setting) -> StepCost | None:
        """Measure a step over all rows; return None if it does not fit into the device's memory."""
        set_checkpointing(self.model, setting.checkpointing)
        if self.on_gpu:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        begun = self.clock()
        try:
            self.step(rows, passes_of(rows, setting), setting.packed)
        except torch.OutOfMemoryError:
            self.optimizer.zero_grad(set_to_none=True)
            return None
        seconds = self.clock() - begun
        return StepCost(seconds, torch.cuda.max_memory_allocated() if self.on_gpu else None)

    def best(self, rows: Sequence[TargetRow], settings: Sequence[Setting]) -> Setting:
        """Return the setting that is fastest on `rows`."""
        self.time(rows[:1], settings[0])  # warm up kernels and the optimizer's state
        costs = {setting: self.time(rows, setting) for setting in settings}
        fitting = {setting: cost.seconds for setting, cost in costs.items() if cost is not None}
        if not fitting:
            raise SystemExit(
                f"no setting of {settings} fits into the device's memory: try --checkpointing on, or fewer tokens"
            )
        return min(fitting, key=fitting.__getitem__)


def passes_of(rows: Sequence[TargetRow], setting: Setting) -> list[Pass]:
    plan = StepPlan(
        [len(row.ids) for row in rows], [len(row.marks) for row in rows],
        batch_size=len(rows), max_tokens=setting.budget, packed=setting.packed,
    )  # fmt: skip
    return plan.passes(np.arange(len(rows)))


def changed(arguments: argparse.Namespace) -> dict[str, int]:
    """Return the values of the shape that the command line overrides."""
    names = {
        "layers": "num_hidden_layers", "hidden": "hidden_size", "intermediate": "intermediate_size",
        "heads": "num_attention_heads", "kv_heads": "num_key_value_heads", "vocabulary": "vocab_size",
    }  # fmt: skip
    values = {theirs: getattr(arguments, ours) for ours, theirs in names.items()}
    return {name: value for name, value in values.items() if value is not None}


def rows_of(way: str, steps: int, tokens: int, arguments: argparse.Namespace) -> list[TargetRow]:
    rows = trajectories(arguments.trajectories, steps, tokens, vocabulary(arguments))
    return rows if way == "one pass" else prefixes(rows)


def vocabulary(arguments: argparse.Namespace) -> int:
    return int(arguments.vocabulary or SHAPES[arguments.shape]["vocab_size"])


def candidates(rows: Sequence[TargetRow], arguments: argparse.Namespace) -> list[Setting]:
    longest = max(len(row.ids) for row in rows)
    choices = {"on": (True,), "off": (False,), "auto": (False, True)}[arguments.checkpointing]
    return [
        Setting(factor * longest, checkpointing, arguments.packed)
        for checkpointing in choices
        for factor in arguments.batches
    ]


def compare(bench: Bench, steps: int, tokens: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure both ways on one set of trajectories."""
    rows = {way: rows_of(way, steps, tokens, arguments) for way in WAYS}
    say(f"T = {steps}, {tokens} tokens: searching the best batch size")
    # A sample of the prefixes, of all lengths: the best setting does not depend on their number.
    samples = {"one pass": rows["one pass"], "prefixes": rows["prefixes"][:: max(1, len(rows["prefixes"]) // 48)]}
    best = {way: bench.best(samples[way], candidates(rows["one pass"], arguments)) for way in WAYS}
    costs: dict[str, list[StepCost]] = {way: [] for way in WAYS}
    for run in range(arguments.runs):
        for way in WAYS:
            cost = bench.time(rows[way], best[way])
            if cost is None:
                raise SystemExit(f"{best[way]} no longer fits into memory: is another program using the device?")
            costs[way].append(cost)
            say(f"T = {steps}, {tokens} tokens: run {run + 1} of {arguments.runs}, {way}: {cost.seconds:.2f} s")
    states = sum(len(row.marks) for row in rows["one pass"])
    ratios = [slow.seconds / fast.seconds for fast, slow in zip(costs["one pass"], costs["prefixes"], strict=True)]
    sizes = {way: sum(len(row.ids) for row in rows[way]) for way in WAYS}
    result: dict[str, Any] = {
        "steps": steps, "trajectories": len(rows["one pass"]), "states": states,
        "tokens_per_trajectory": round(sizes["one pass"] / len(rows["one pass"])), "bound": (steps + 1) / 2,
        "ratio_of_tokens": round(sizes["prefixes"] / sizes["one pass"], 2), "ratio": spread(ratios),
    }  # fmt: skip
    for way in WAYS:
        seconds = [cost.seconds for cost in costs[way]]
        result[way.replace(" ", "_")] = {
            "states_per_s": spread([states / value for value in seconds]),
            "tokens": sizes[way],
            "tokens_per_s": round(rate := sizes[way] / float(np.median(seconds))),
            "mfu": bench.utilisation(rate),
            **asdict(best[way]),
            **memory(costs[way], way, steps, tokens, best[way], arguments),
        }
    return result


def memory(
    costs: Sequence[StepCost], way: str, steps: int, tokens: int, setting: Setting, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return the peak memory of the step, in MiB."""
    peaks = [cost.peak_bytes for cost in costs if cost.peak_bytes is not None]
    if peaks:
        return {"peak_mib": round(max(peaks) / 2**20)}
    if arguments.no_memory or not Path("/proc/self/clear_refs").exists():
        return {}
    worker = json.dumps({"way": way, "steps": steps, "tokens": tokens, "setting": asdict(setting)})
    done = subprocess.run(
        [sys.executable, __file__, *arguments.given, "--worker", worker], capture_output=True, text=True, check=True
    )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure_memory(bench: Bench, arguments: argparse.Namespace) -> dict[str, int]:
    """Return the resident set before a step and its peak during the step, in MiB; for a separate process."""
    order = json.loads(arguments.worker)
    rows = rows_of(order["way"], order["steps"], order["tokens"], arguments)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark
    bench.time(rows, Setting(**order["setting"]))
    return {"peak_mib": round(resident("VmHWM")), "before_step_mib": round(before)}


def resident(name: str) -> float:
    """Read a figure of /proc/self/status, in MiB."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 2**10


def paper_set(bench: Bench, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure time and memory of the paper's SciWorld training."""
    count = round(PAPER_SHARE * arguments.paper_trajectories)
    rows = trajectories(count, PAPER_STATES - 1, arguments.tokens[0], vocabulary(arguments), spread=0.5)
    best = bench.best(rows[:PAPER_BATCH], candidates(rows[:PAPER_BATCH], arguments))
    set_checkpointing(bench.model, best.checkpointing)
    plan = StepPlan(
        [len(row.ids) for row in rows], [len(row.marks) for row in rows],
        batch_size=PAPER_BATCH, max_tokens=best.budget, packed=best.packed,
    )  # fmt: skip
    n_steps, steps, tokens = plan.steps_per_epoch * PAPER_EPOCHS, 0, 0
    if bench.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    begun = bench.clock()
    for passes in steps_of(plan):
        bench.step(rows, passes, best.packed)
        steps, tokens = steps + 1, tokens + passes[0].step_tokens
        seconds = bench.clock() - begun
        rate, left = tokens / seconds, seconds * (n_steps / steps - 1) / 60
        say(f"paper set: step {steps} of {n_steps}, {rate:,.0f} tokens/s, {left:.1f} min left")
        if arguments.limit is not None and seconds > arguments.limit:
            break
    whole = sum(len(row.ids) for row in rows) * PAPER_EPOCHS
    return {
        "trajectories": arguments.paper_trajectories, "states_per_trajectory": PAPER_STATES, "share": PAPER_SHARE,
        "epochs": PAPER_EPOCHS, "batch_size": PAPER_BATCH, "steps": n_steps, "steps_measured": steps,
        "seconds_measured": round(seconds, 2), "minutes_for_all": round(seconds * whole / tokens / 60, 2),
        "tokens": whole, "tokens_per_s": round(rate), "mfu": bench.utilisation(rate), **asdict(best),
        **({"peak_mib": round(torch.cuda.max_memory_allocated() / 2**20)} if bench.on_gpu else {}),
    }  # fmt: skip


def steps_of(plan: StepPlan) -> Iterator[list[Pass]]:
    for epoch in range(PAPER_EPOCHS):
        for rows in plan.steps(epoch):
            yield plan.passes(rows)


def spread(figures: Sequence[float]) -> dict[str, float]:
    return {
        name: float(f"{value:.4g}")
        for name, value in (("median", np.median(figures)), ("least", min(figures)), ("most", max(figures)))
    }


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def measure(bench: Bench, arguments: argparse.Namespace) -> dict[str, Any]:
    sizes = arguments.tokens if bench.on_gpu or arguments.shape != "tiny" else [None]
    results = [compare(bench, steps, size or 64 + 14 * steps, arguments) for size in sizes for steps in arguments.steps]
    run: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/one_pass_training.py", *without_out(arguments.given)]),
        "shape": arguments.shape,
        "changed": changed(arguments),
        "device": torch.cuda.get_device_name() if bench.on_gpu else "cpu",
        "clock": "wall" if bench.on_gpu else "processor",
        "dtype": arguments.dtype,
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "parameters": bench.trained.parameters,
        "embedding_parameters": bench.trained.embeddings,
        "adapter_parameters": bench.trained.adapter,
        "matmul_tflops": round(bench.matmul_rate / 1e12, 4),
        "runs": arguments.runs,
        "results": results,
    }
    return run | ({"paper_set": paper_set(bench, arguments)} if arguments.paper_set else {})


def without_out(given: Sequence[str]) -> list[str]:
    at = given.index("--out") if "--out" in given else len(given)
    return [*given[:at], *given[at + 2 :]]


def keep(path: Path, run: dict[str, Any]) -> None:
    """Add a run to the file. It replaces a run of the same shape, device and data type."""
    name = ("shape", "changed", "device", "dtype")
    runs = json.loads(path.read_text())["runs"] if path.exists() else []
    others = [other for other in runs if [other[key] for key in name] != [run[key] for key in name]]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": 1, "runs": [*others, run]}, indent=1) + "\n")


def parsed(given: Sequence[str]) -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--attention", default="auto", help="transformers' attn_implementation")
    parser.add_argument("--packed", action="store_true", help="pack rows, for variable-length kernels")
    parser.add_argument("--checkpointing", choices=["auto", "on", "off"], default=None)
    parser.add_argument("--steps", type=numbers, default=[10, 20, 40], help="values of T, separated by commas")
    parser.add_argument("--tokens", type=numbers, default=[2048, 8192], help="tokens of a trajectory (not for tiny)")
    parser.add_argument("--trajectories", type=int, default=8)
    parser.add_argument("--batches", type=numbers, default=[1, 2, 4, 8], help="size of a pass, in trajectories")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--matmul", type=int, default=None, help="size of the matrices of the timed product")
    parser.add_argument("--no-memory", action="store_true", help="on the CPU, do not measure memory")
    parser.add_argument("--paper-set", action="store_true")
    parser.add_argument("--paper-trajectories", type=int, default=PAPER_TRAJECTORIES)
    parser.add_argument("--limit", type=float, default=None, help="time limit of --paper-set in seconds")
    for name in ("layers", "hidden", "intermediate", "heads", "kv-heads", "vocabulary"):
        parser.add_argument(f"--{name}", type=int, default=None, help="override the shape's value")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--worker", default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args(given)
    arguments.given = list(given)
    for name, value in (_ON_CPU if arguments.device == "cpu" else _ON_GPU).items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    return arguments


_ON_CPU = {"trajectories": 8, "batches": [1, 2, 4, 8], "runs": 5, "checkpointing": "off"}
_ON_GPU = {"trajectories": 4, "batches": [1, 2, 4], "runs": 3, "checkpointing": "auto"}
"""Defaults that depend on the device."""


def main(given: Sequence[str] | None = None) -> dict[str, Any]:
    arguments = parsed(sys.argv[1:] if given is None else given)
    torch.set_num_threads(arguments.threads)
    bench = Bench(arguments)
    if arguments.worker is not None:
        figures: dict[str, Any] = measure_memory(bench, arguments)
        print(json.dumps(figures))
        return figures
    run = measure(bench, arguments)
    print(json.dumps(run, indent=1))
    if arguments.out is not None:
        keep(arguments.out, run)
    return run


if __name__ == "__main__":
    main()
