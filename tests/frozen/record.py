"""What is recorded of a run, as plain JSON: nothing that depends on the time, the machine or chance."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import Counter
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.tracers.base import BaseTracer

COMPUTED = {
    "ess", "log_evidence", "log_weights", "beta", "probability", "log_prior", "probabilities", "ratio"
}  # fmt: skip
"""Fields whose numbers come out of exp, log or a model: equal to a tolerance. All other numbers are exact."""
TOLERANCE = 1e-9
DIGITS = 11


class Tree(BaseTracer):
    """Keeps the finished traces."""

    run_inline = True

    def __init__(self):
        super().__init__()
        self.roots = []

    def _persist_run(self, run):
        self.roots.append(run)


def plain(value: Any) -> Any:
    """Convert to JSON values; numbers that JSON does not have become texts."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)
    return value


def usage(by_name: Any) -> dict[str, list[int]]:
    return {
        name: [used.calls, used.input_tokens, used.output_tokens, used.cached_tokens, used.missing]
        for name, used in by_name.items()
    }


def steps(trajectory: Any) -> str:
    end = "cut" if trajectory.truncated else "done" if trajectory.done else "open"
    return f"{' '.join(short(step.action) for step in trajectory.steps)} ({end})"


def short(action: str) -> str:
    """A call as `name(value)`; other actions as they are."""
    if not action.startswith("{"):
        return action
    call = json.loads(action)
    return f"{call['name']}({' '.join(str(value) for value in call['args'].values())})"


def run_record(run: Any) -> dict[str, Any]:
    """The numbers of a run, its answer, and what it says about itself."""
    return plain({
        "answer": {
            "index": run.best_index,
            "steps": [[step.thought, step.action, step.observation, step.reward] for step in run.best.steps],
            "messages": [len(run.best_output["messages"]), *texts(run.best_output["messages"][-1:])],
        },
        "history": [point(each) for each in run.history],
        "population": {
            "trajectories": [steps(each) for each in run.population.trajectories],
            "returns": [each.return_ for each in run.population.trajectories],
            "values": run.population.values,
            "log_weights": run.population.log_weights,
            "since": {"log_weights": run.population.log_weights_since},
            "failed": [slot for slot, failed in enumerate(run.population.failed) if failed],
        },
        "log_evidence": run.log_evidence,
        "beta": run.beta,
        "select": [run.select, run.deployable, run.stopped_by],
        "usage": usage(run.usage),
        "fates": usage(run.usage_by_fate),
        "models": {role: usage(models) for role, models in run.usage_by_model.items()},
        "notes": list(run.notes),
        "commits": [str(each) for each in run.commits],
        "deferred": [str(each) for each in run.deferred],
    })  # fmt: skip


def point(each: Any) -> dict[str, Any]:
    """A weighing point."""
    return {
        "step": each.step,
        "values": each.values,
        "log_weights": each.log_weights,
        "ess": each.ess,
        "ancestors": each.ancestors,
        "retired": each.retired,
        "selected": each.selected,
        "dropped": {str(slot): steps(trajectory) for slot, trajectory in each.dropped.items()},
    }


def texts(messages: Any) -> list[str]:
    """Each message's kind with its text, or its calls."""
    return [f"{each.type}: {each.text or [(call['name'], call['args']) for call in calls_of(each)]}"
            for each in messages]  # fmt: skip


def calls_of(message: BaseMessage) -> list[Any]:
    return getattr(message, "tool_calls", [])


def events_record(events: list[Any]) -> dict[str, Any]:
    """The types of the library's custom events in order, their fields, and the agents' own events by particle.

    Particles run side by side, so the order between their own events is left open.
    """
    order, fields, own = [], {}, Counter()
    for event in events:
        kind = event["type"]
        fields[kind] = sorted({*fields.get(kind, []), *event})
        if kind == "amc.event":
            said = event["event"].get("type", event["event"])
            own[f"particle {event['particle']} step {event['step']}: {said}"] += 1
        elif "decision" in kind:
            order.append(_decision({name: each for name, each in event.items() if name not in ("seconds", "episode")}))
        elif kind == "amc.resample":
            order.append(f"{kind} at {event['step']} {event['ancestors']} retired {event['retired']}")
        else:
            order.append(f"{kind} at {event['step']}" if "step" in event else kind)
    return {"order": order, "fields": fields, "of agents": dict(sorted(own.items()))}


def _decision(value: Any) -> Any:
    """A decision without what is None or empty, and with short calls."""
    if isinstance(value, dict):
        return {key: _decision(each) for key, each in value.items() if each is not None and each not in ([], (), "")}
    if isinstance(value, list | tuple):
        return [_decision(each) for each in value]
    return short(value) if isinstance(value, str) else value


def trace_record(roots: list[Any]) -> list[str]:
    """Every trace as a text: its spans' names with their children in brackets, in alphabetical order.

    Spans with the same children stand together.
    """

    def text(run):
        outcome = (run.extra or {}).get("metadata", {}).get("outcome") if run.name.startswith("particle") else None
        return run.name, (f" [{outcome}]" if outcome else "") + below(run.child_runs)

    def below(runs):
        alike = {}
        for name, rest in map(text, runs):
            alike.setdefault(rest, Counter())[name] += 1
        said = (", ".join(f"{n} {name}" if n > 1 else name for name, n in sorted(names.items())) + rest
                for rest, names in alike.items())  # fmt: skip
        return f"({'; '.join(sorted(said))})" if runs else ""

    return sorted(_abbreviated("".join(text(root))) for root in roots)


def _abbreviated(trace: str) -> str:
    """`p3<1@2` is "particle 3 from particle 1 at step 2", `p3` is "particle 3", `llm` is the scripted model."""
    trace = re.sub(r"\bparticle (\d+) from particle (\d+) at step (\d+)", r"p\1<\2@\3", trace)
    return re.sub(r"\bparticle (\d+)", r"p\1", trace).replace("ScriptedChatModel", "llm")


class Heard:
    """What one call of a graph streamed and traced, and its result.

    Args:
        graph: any compiled graph.
        given: its input.
        way: "stream", "astream", "run" or "arun".
    """

    def __init__(self, graph: Any, given: Any, way: str = "astream", config: Any = None, **options: Any) -> None:
        self.tree, self.run, self.output = Tree(), None, None
        self.events, self.messages, self.n_early = [], [], 0
        config = {**(config or {}), "callbacks": [self.tree]}
        if way in ("run", "arun"):
            self.run = graph.run(given, config, **options) if way == "run" else asyncio.run(
                self._closed(graph.arun(given, config, **options)))  # fmt: skip
            self.run.close()
            return
        modes = ["custom", "messages", "values"]
        for mode, item in (
            graph.stream(given, config, stream_mode=modes, **options)
            if way == "stream"
            else asyncio.run(self._all(graph.astream(given, config, stream_mode=modes, **options)))
        ):
            if mode == "custom":
                self.events.append(item)
                if item["type"] == "amc.run":
                    self.run, self.n_early = item["run"], len(self.messages)
            elif mode == "messages":
                self.messages.append(item[0])
            else:
                self.output = item

    async def _all(self, stream: Any) -> list[Any]:
        return [item async for item in stream]

    async def _closed(self, running: Any) -> Any:
        async with await running as run:
            return run

    def record(self) -> dict[str, Any]:
        record = {} if self.run is None else run_record(self.run)
        if self.run is None and self.output is not None:
            record["answer"] = texts(self.output["messages"])
        if self.events:
            record["events"] = events_record(self.events)
            streamed = texts(self.messages)
            answered = texts(self.output["messages"])
            record["streamed"] = {
                "messages": "the answer's" if streamed == answered[len(answered) - len(streamed) :] else streamed,
                "number": len(streamed),
                "before the end": self.n_early,
            }
        record["traces"] = trace_record(self.tree.roots)
        return plain(record)


def differences(then: Any, now: Any, where: str = "", *, near: float | None = None) -> list[str]:
    """Where two records differ. Numbers below a field of `COMPUTED` may differ by the tolerance.

    Args:
        then: the frozen record.
        now: the new record.
        where: place in the record.
        near: tolerance of numbers here; None: they must be equal.
    """
    if isinstance(then, dict) and isinstance(now, dict):
        lost = [f"{where}/{key}: is missing" for key in then if key not in now]
        new = [f"{where}/{key}: is new" for key in now if key not in then]
        both = [key for key in then if key in now]
        return lost + new + [line for key in both for line in differences(
            then[key], now[key], f"{where}/{key}", near=TOLERANCE if near is None and key in COMPUTED else near
        )]  # fmt: skip
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        pairs = enumerate(zip(then, now, strict=True))
        return [line for i, (a, b) in pairs for line in differences(a, b, f"{where}/{i}", near=near)]
    if near and _are_numbers(then, now) and math.isclose(then, now, rel_tol=near, abs_tol=near):
        return []
    return [] if then == now and type(then) is type(now) else [f"{where}: was {then!r}, is {now!r}"]


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
