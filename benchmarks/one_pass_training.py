"""Training a value model in one pass per trajectory against one pass per prefix: states/s, tokens, memory, in one run.

    python benchmarks/one_pass_training.py                                            # tiny model, CPU
    python benchmarks/one_pass_training.py --shape llama-3.1-8b --device cuda --dtype bfloat16 --paper-set
    python benchmarks/one_pass_training.py --shape qwen2.5-3b --device cuda --dtype bfloat16

Each adds its results to docs/results/one_pass_training.json with `--out docs/results/one_pass_training.json`.

Models of random weights from a config, made on the device; LoRA of rank 8 on all linear layers. A run is one optimizer
step over a set of trajectories, cut into passes by the trainer's own plan; both ways give the same gradient, read
batches of like length (or packed ones) and apply the head to the marks alone. For each way the fastest batch size, with
or without gradient checkpointing, is looked for first. Runs of both alternate; ratios are of neighbours.

- The ratio is set beside (T + 1) / 2, by which one pass has fewer tokens where all steps are of one length and the task
  of none; a long task makes it more (at most T + 1). Attention makes the ratio of times less than that of tokens.
- Memory: the step's peak. On a GPU torch's; on the CPU (Linux) the resident set's high-water mark in a process of its
  own, beside what was resident before the step.
- MFU: 4 FLOPs per token and parameter (forward, and backward to activations; embeddings and what is computed twice are
  not counted) against the rate of matrix products of that type, measured here.
- `--paper-set`: three epochs over 80% of 1,100 trajectories of 20 states in steps of 16 trajectories, as for the
  paper's SciWorld model (2 hours on two RTX 6000 Ada). `--limit S` stops after S seconds and scales.

On the CPU the clock is the processor's, with one thread: other programs of a busy machine touch it least.
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
from value_shapes import PAD, SHAPES, Trained, make, prefixes, set_checkpointing, trajectories

from amc_agents.training.value.data import TargetRow
from amc_agents.training.value.loss import loss
from amc_agents.training.value.objective import Objective
from amc_agents.training.value.one_pass import collate, scores_at_marks
from amc_agents.training.value.plan import Pass, StepPlan
from amc_agents.training.value.settings import ValueTrainingSettings

PAPER_TRAJECTORIES, PAPER_STATES, PAPER_SHARE, PAPER_EPOCHS, PAPER_BATCH = 1100, 20, 0.8, 3, 16
"""SciWorld in the paper (appendix B, table 7); the share is that of the training set."""
WAYS = ("one pass", "prefixes")


@dataclass(frozen=True)
class Setting:
    """How the rows go through the model."""

    budget: int
    """The most tokens of a forward pass, padding included."""
    checkpointing: bool = False
    packed: bool = False


class Taken(NamedTuple):
    """What a step took."""

    seconds: float
    peak_bytes: int | None
    """On a GPU."""


class Bench:
    """A model on its device, and its clock."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.device, self.matmul = arguments.device, arguments.matmul
        self.settings = ValueTrainingSettings(
            dtype=arguments.dtype, device=arguments.device, attention=arguments.attention
        )
        self.trained: Trained = make(arguments.shape, changed(arguments), self.settings)
        self.model = self.trained.model
        self.optimizer = torch.optim.AdamW([one for one in self.model.parameters() if one.requires_grad], lr=1e-5)
        self.on_gpu = torch.device(self.device).type == "cuda"

    @cached_property
    def matmul_rate(self) -> float:
        """FLOPs per second of a square matrix product: the median of ten."""
        size = self.matmul or (8192 if self.on_gpu else 1024)
        one = torch.randn(size, size, device=self.device, dtype=getattr(torch, self.settings.dtype))
        torch.mm(one, one)
        taken = []
        for _ in range(10):
            begun = self.clock()
            torch.mm(one, one)
            taken.append(self.clock() - begun)
        return 2 * size**3 / float(np.median(taken))

    def utilisation(self, tokens_per_second: float) -> float:
        """MFU, counting 4 FLOPs per token and parameter."""
        return round(4 * self.trained.parameters * tokens_per_second / self.matmul_rate, 3)

    def clock(self) -> float:
        if not self.on_gpu:
            return time.process_time() / torch.get_num_threads()
        torch.cuda.synchronize()
        return time.perf_counter()

    def step(self, rows: Sequence[TargetRow], passes: Sequence[Pass], packed: bool) -> None:
        """One optimizer step, as the trainer makes it."""
        for one in passes:
            batch = collate([rows[index] for index in one.rows], PAD, packed=packed)
            scores = scores_at_marks(self.model, batch)
            (loss(scores, batch, Objective()) * one.share).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def time(self, rows: Sequence[TargetRow], setting: Setting) -> Taken | None:
        """One step over all rows; None where the device's memory does not suffice."""
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
        taken = self.clock() - begun
        return Taken(taken, torch.cuda.max_memory_allocated() if self.on_gpu else None)

    def best(self, rows: Sequence[TargetRow], settings: Sequence[Setting]) -> Setting:
        """The fastest setting, tried on `rows`."""
        self.time(rows[:1], settings[0])  # what is done once only: kernels, the optimizer's state
        tried = {setting: self.time(rows, setting) for setting in settings}
        fitting = {setting: taken.seconds for setting, taken in tried.items() if taken is not None}
        if not fitting:
            raise SystemExit(
                f"none of {settings} fits into the device's memory: try --checkpointing on, or fewer tokens"
            )
        return min(fitting, key=fitting.__getitem__)


def passes_of(rows: Sequence[TargetRow], setting: Setting) -> list[Pass]:
    plan = StepPlan(
        [len(row.ids) for row in rows], [len(row.marks) for row in rows],
        batch_size=len(rows), max_tokens=setting.budget, packed=setting.packed,
    )  # fmt: skip
    return plan.passes(np.arange(len(rows)))


def changed(arguments: argparse.Namespace) -> dict[str, int]:
    """Numbers of the shape that the command line overrides."""
    names = {
        "layers": "num_hidden_layers", "hidden": "hidden_size", "intermediate": "intermediate_size",
        "heads": "num_attention_heads", "kv_heads": "num_key_value_heads", "vocabulary": "vocab_size",
    }  # fmt: skip
    given = {theirs: getattr(arguments, ours) for ours, theirs in names.items()}
    return {name: value for name, value in given.items() if value is not None}


def rows_of(way: str, steps: int, tokens: int, arguments: argparse.Namespace) -> list[TargetRow]:
    rows = trajectories(arguments.trajectories, steps, tokens, vocabulary(arguments))
    return rows if way == "one pass" else prefixes(rows)


def vocabulary(arguments: argparse.Namespace) -> int:
    return int(arguments.vocabulary or SHAPES[arguments.shape]["vocab_size"])


def candidates(rows: Sequence[TargetRow], arguments: argparse.Namespace) -> list[Setting]:
    longest = max(len(row.ids) for row in rows)
    again = {"on": (True,), "off": (False,), "auto": (False, True)}[arguments.checkpointing]
    return [
        Setting(factor * longest, checkpointing, arguments.packed)
        for checkpointing in again
        for factor in arguments.batches
    ]


def compare(bench: Bench, steps: int, tokens: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Both ways on one set of trajectories."""
    rows = {way: rows_of(way, steps, tokens, arguments) for way in WAYS}
    say(f"T = {steps}, {tokens} tokens: looking for the best batch size")
    # Some of the prefixes, of all lengths: what is best does not depend on how many there are.
    tried = {"one pass": rows["one pass"], "prefixes": rows["prefixes"][:: max(1, len(rows["prefixes"]) // 48)]}
    best = {way: bench.best(tried[way], candidates(rows["one pass"], arguments)) for way in WAYS}
    taken: dict[str, list[Taken]] = {way: [] for way in WAYS}
    for run in range(arguments.runs):
        for way in WAYS:
            one = bench.time(rows[way], best[way])
            if one is None:
                raise SystemExit(f"{best[way]} fitted before and does not now: is something else on the device?")
            taken[way].append(one)
            say(f"T = {steps}, {tokens} tokens: run {run + 1} of {arguments.runs}, {way}: {one.seconds:.2f} s")
    states = sum(len(row.marks) for row in rows["one pass"])
    ratios = [slow.seconds / fast.seconds for fast, slow in zip(taken["one pass"], taken["prefixes"], strict=True)]
    sizes = {way: sum(len(row.ids) for row in rows[way]) for way in WAYS}
    found: dict[str, Any] = {
        "steps": steps, "trajectories": len(rows["one pass"]), "states": states,
        "tokens_per_trajectory": round(sizes["one pass"] / len(rows["one pass"])), "bound": (steps + 1) / 2,
        "ratio_of_tokens": round(sizes["prefixes"] / sizes["one pass"], 2), "ratio": spread(ratios),
    }  # fmt: skip
    for way in WAYS:
        seconds = [one.seconds for one in taken[way]]
        found[way.replace(" ", "_")] = {
            "states_per_s": spread([states / one for one in seconds]),
            "tokens": sizes[way],
            "tokens_per_s": round(rate := sizes[way] / float(np.median(seconds))),
            "mfu": bench.utilisation(rate),
            **asdict(best[way]),
            **memory(taken[way], way, steps, tokens, best[way], arguments),
        }
    return found


def memory(
    taken: Sequence[Taken], way: str, steps: int, tokens: int, setting: Setting, arguments: argparse.Namespace
) -> dict[str, Any]:
    """MiB at the step's peak."""
    peaks = [one.peak_bytes for one in taken if one.peak_bytes is not None]
    if peaks:
        return {"peak_mib": round(max(peaks) / 2**20)}
    if arguments.no_memory or not Path("/proc/self/clear_refs").exists():
        return {}
    worker = json.dumps({"way": way, "steps": steps, "tokens": tokens, "setting": asdict(setting)})
    told = subprocess.run(
        [sys.executable, __file__, *arguments.given, "--worker", worker], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    return found


def measure_memory(bench: Bench, arguments: argparse.Namespace) -> dict[str, int]:
    """In a process of its own: what is resident before a step, and the most during it, in MiB."""
    order = json.loads(arguments.worker)
    rows = rows_of(order["way"], order["steps"], order["tokens"], arguments)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins here
    bench.time(rows, Setting(**order["setting"]))
    return {"peak_mib": round(resident("VmHWM")), "before_step_mib": round(before)}


def resident(name: str) -> float:
    """A figure of /proc/self/status, in MiB."""
    (line,) = (one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith(name))
    return int(line.split()[1]) / 2**10


def paper_set(bench: Bench, arguments: argparse.Namespace) -> dict[str, Any]:
    """Time and memory of the paper's SciWorld training."""
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
    found: dict[str, Any] = {
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
    return found | ({"paper_set": paper_set(bench, arguments)} if arguments.paper_set else {})


def without_out(given: Sequence[str]) -> list[str]:
    at = given.index("--out") if "--out" in given else len(given)
    return [*given[:at], *given[at + 2 :]]


def keep(path: Path, found: dict[str, Any]) -> None:
    """Adds a run to the file, in place of one of the same shape, device and number type."""
    name = ("shape", "changed", "device", "dtype")
    runs = json.loads(path.read_text())["runs"] if path.exists() else []
    others = [one for one in runs if [one[key] for key in name] != [found[key] for key in name]]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": 1, "runs": [*others, found]}, indent=1) + "\n")


def parsed(given: Sequence[str]) -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--attention", default="auto", help="transformers' attn_implementation")
    parser.add_argument("--packed", action="store_true", help="packed rows, for kernels of variable length")
    parser.add_argument("--checkpointing", choices=["auto", "on", "off"], default=None)
    parser.add_argument("--steps", type=numbers, default=[10, 20, 40], help="T, several with commas")
    parser.add_argument("--tokens", type=numbers, default=[2048, 8192], help="of a trajectory (not for tiny)")
    parser.add_argument("--trajectories", type=int, default=8)
    parser.add_argument(
        "--batches", type=numbers, default=[1, 2, 4, 8], help="of a pass: trajectories' worth of tokens"
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--matmul", type=int, default=None, help="size of the matrices whose product is timed")
    parser.add_argument("--no-memory", action="store_true", help="on the CPU: start no processes to measure memory")
    parser.add_argument("--paper-set", action="store_true")
    parser.add_argument("--paper-trajectories", type=int, default=PAPER_TRAJECTORIES)
    parser.add_argument("--limit", type=float, default=None, help="seconds for the paper's set")
    for name in ("layers", "hidden", "intermediate", "heads", "kv-heads", "vocabulary"):
        parser.add_argument(f"--{name}", type=int, default=None, help="in place of the shape's")
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
"""What is not said on the command line."""


def main(given: Sequence[str] | None = None) -> dict[str, Any]:
    arguments = parsed(sys.argv[1:] if given is None else given)
    torch.set_num_threads(arguments.threads)
    bench = Bench(arguments)
    if arguments.worker is not None:
        found: dict[str, Any] = measure_memory(bench, arguments)
        print(json.dumps(found))
        return found
    found = measure(bench, arguments)
    print(json.dumps(found, indent=1))
    if arguments.out is not None:
        keep(arguments.out, found)
    return found


if __name__ == "__main__":
    main()
