"""Tasks per second against GPUs for policy and critic: on paper, in simulation, and against measured points.

    python benchmarks/load_model.py                    # checks, and the table of docs/scale.md
    python benchmarks/load_model.py --url URL   # also against a running value server

The paper model counts the tokens of a task and divides a server's speed by them. The simulation plays tasks against
servers with continuous batching, event by event, with the barriers of AMC's weighings. A server is two numbers: an
iteration takes `overhead + per_token * tokens` seconds. The speeds in the table are INPUTS, chosen round, not
measurements: replace them by those of your servers.

Exits with 1 if simulation and paper differ by more than 15% in the saturated cases, or a measured point is missed.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import numpy as np

CRAFTING = Path(__file__).resolve().parents[1] / "docs" / "results" / "crafting" / "results.json"
Event = Callable[[], None]


@dataclass(frozen=True)
class Server:
    """The speed of one replica."""

    overhead: float
    """Seconds of an iteration without tokens."""
    per_token: float
    """Seconds per computed token."""
    most_tokens: int = 8192
    """Tokens of one iteration, at most."""
    most_sequences: int = 256
    """Requests in one iteration, at most."""


@dataclass(frozen=True)
class Workload:
    """What one task asks of the servers."""

    n_particles: int = 15
    steps: int = 20
    weighings: int = 4
    """Times that the critic is asked, the end included, at even distances."""
    task_tokens: int = 1000
    """System prompt, tools and task."""
    output_tokens: int = 150
    """Of one step."""
    observation_tokens: int = 250
    """Of one step."""
    policy_hits: float = 0.9
    """Share of prompt tokens that the policy's prefix caches hold."""
    critic_hits: float = 0.7
    tool_seconds: float = 0.5

    @property
    def points(self) -> list[int]:
        """Steps after which particles are weighed."""
        return [round(self.steps * number / self.weighings) for number in range(1, self.weighings + 1)]

    def prompt(self, step: int) -> float:
        """Tokens of a prompt after `step` steps."""
        return self.task_tokens + step * (self.output_tokens + self.observation_tokens)

    def decoded(self) -> float:
        """Tokens that the policy writes for a task."""
        return float(self.n_particles * self.steps * self.output_tokens)

    def prefilled(self) -> float:
        """Prompt tokens that the policy computes for a task."""
        return (1 - self.policy_hits) * self.n_particles * sum(map(self.prompt, range(self.steps)))

    def judged(self) -> float:
        """Prompt tokens that the critic computes for a task."""
        return (1 - self.critic_hits) * self.n_particles * sum(map(self.prompt, self.points))


@dataclass(frozen=True)
class Fleet:
    """Replicas of policy and critic, and the tasks in progress."""

    policy: Server
    critic: Server
    n_policy: int = 1
    n_critic: int = 1
    abreast: int = 32


def on_paper(load: Workload, fleet: Fleet) -> dict[str, float]:
    """Return the tasks per second that the policy, the critic and the number of tasks in progress allow."""
    policy, critic = fleet.policy, fleet.critic
    # Every iteration of a saturated server serves as many sequences as there are, at most `most_sequences`.
    sequences = min(policy.most_sequences, fleet.abreast * load.n_particles / fleet.n_policy)
    policy_seconds = (
        policy.per_token * (load.decoded() + load.prefilled()) + policy.overhead * load.decoded() / sequences
    )
    critic_seconds = load.judged() * (critic.per_token + critic.overhead / critic.most_tokens)
    return {
        "policy": fleet.n_policy / policy_seconds,
        "critic": fleet.n_critic / critic_seconds,
        "latency": fleet.abreast / _fastest_task(load, fleet),
    }


def _fastest_task(load: Workload, fleet: Fleet) -> float:
    """Seconds of a task that has the servers for itself."""
    policy, critic = fleet.policy, fleet.critic
    iteration = policy.overhead + policy.per_token * load.n_particles
    acting = load.steps * (load.output_tokens * iteration + load.tool_seconds) + policy.per_token * load.prefilled()
    return acting + load.weighings * critic.overhead + critic.per_token * load.judged()


class Clock:
    """Events in the order of their times."""

    def __init__(self) -> None:
        self.now, self._events, self._count = 0.0, list[tuple[float, int, Event]](), 0

    def after(self, seconds: float, event: Event) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, event))

    def run(self, until: Callable[[], bool]) -> None:
        while not until():
            self.now, _, event = heapq.heappop(self._events)
            event()


@dataclass
class Request:
    """What is left of a request."""

    prefill: float
    decode: float
    done: Event


class Replica:
    """A server with continuous batching: every iteration decodes one token of each request and prefills others."""

    def __init__(self, clock: Clock, server: Server) -> None:
        self._clock, self._server = clock, server
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._busy = False
        self.busy_seconds = 0.0

    def ask(self, prefill: float, decode: float, done: Event) -> None:
        self._waiting.append(Request(prefill, decode, done))
        if not self._busy:
            self._iterate()

    def _iterate(self) -> None:
        server = self._server
        while self._waiting and len(self._running) < server.most_sequences:
            self._running.append(self._waiting.popleft())
        decoding = [request for request in self._running if request.prefill <= 0]
        tokens = float(len(decoding))
        for request in decoding:
            request.decode -= 1
        for request in self._running:
            if request.prefill > 0 and tokens < server.most_tokens:
                part = min(request.prefill, server.most_tokens - tokens)
                request.prefill -= part
                tokens += part
        seconds = server.overhead + server.per_token * tokens
        self._busy, self.busy_seconds = True, self.busy_seconds + seconds
        self._clock.after(seconds, self._end)

    def _end(self) -> None:
        finished = [request for request in self._running if request.prefill <= 0 and request.decode <= 0]
        self._running = [request for request in self._running if request.prefill > 0 or request.decode > 0]
        self._busy = False
        for request in finished:
            request.done()
        if not self._busy and (self._running or self._waiting):
            self._iterate()


@dataclass
class Simulation:
    """Tasks that are played against a fleet; each stays on one replica of the policy and of the critic."""

    load: Workload
    fleet: Fleet
    rng: np.random.Generator
    clock: Clock = field(default_factory=Clock)
    finished: list[float] = field(default_factory=list)

    def tasks_per_second(self, n_tasks: int) -> float:
        """Play until `n_tasks` are finished, and return the rate of those after the first round."""
        self._policies = [Replica(self.clock, self.fleet.policy) for _ in range(self.fleet.n_policy)]
        self._critics = [Replica(self.clock, self.fleet.critic) for _ in range(self.fleet.n_critic)]
        self._started = 0
        # Tasks begin at different times, as they do after a while.
        for number in range(self.fleet.abreast):
            self.clock.after(number * _fastest_task(self.load, self.fleet) / self.fleet.abreast, self._begin)
        self.clock.run(lambda: len(self.finished) >= n_tasks)
        first = self.fleet.abreast
        return (len(self.finished) - first) / (self.finished[-1] - self.finished[first - 1])

    def _begin(self) -> None:
        policy = self._policies[self._started % len(self._policies)]
        critic = self._critics[self._started % len(self._critics)]
        self._started += 1
        population = Population(self, policy, critic)
        for _ in range(self.load.n_particles):
            population.act(0)

    def end(self) -> None:
        self.finished.append(self.clock.now)
        self._begin()


class Population:
    """The particles of a task: they act on their own, and wait for each other where they are weighed."""

    def __init__(self, simulation: Simulation, policy: Replica, critic: Replica) -> None:
        self._all, self._policy, self._critic = simulation, policy, critic
        self._arrived = 0

    def act(self, step: int) -> None:
        load = self._all.load
        computed = (1 - load.policy_hits) * load.prompt(step)
        # The length of outputs varies; their mean is `output_tokens`.
        decoded = max(1.0, self._all.rng.gamma(4.0, load.output_tokens / 4.0))
        self._policy.ask(computed, decoded, lambda: self._use_tool(step + 1))

    def _use_tool(self, step: int) -> None:
        self._all.clock.after(self._all.load.tool_seconds, lambda: self._arrive(step))

    def _arrive(self, step: int) -> None:
        load = self._all.load
        if step not in load.points:
            self.act(step)
            return
        self._arrived += 1
        if self._arrived == load.n_particles:
            self._arrived = 0
            judged = (1 - load.critic_hits) * load.n_particles * load.prompt(step)
            self._critic.ask(judged, 0, lambda: self._weighed(step))

    def _weighed(self, step: int) -> None:
        if step >= self._all.load.steps:
            self._all.end()
            return
        for _ in range(self._all.load.n_particles):
            self.act(step)


POLICY, CRITIC = Server(0.010, 1 / 20_000), Server(0.010, 1 / 40_000)
"""Round numbers: inputs, not measurements."""
CASES = {
    "1 policy, 1 critic": Fleet(POLICY, CRITIC),
    "2 policies, 1 critic": Fleet(POLICY, CRITIC, n_policy=2, abreast=64),
    "4 policies, 1 critic": Fleet(POLICY, CRITIC, n_policy=4, abreast=128),
    "1 policy, 1 critic, 2 tasks": Fleet(POLICY, CRITIC, abreast=2),
    "2 policies, a critic of a tenth of the speed": Fleet(POLICY, Server(0.1, 1 / 4_000), n_policy=2, abreast=64),
}


def table() -> bool:
    """Print paper and simulation side by side; False if they differ where servers are saturated."""
    agree = True
    for name, fleet in CASES.items():
        limits = on_paper(Workload(), fleet)
        bound = min(limits, key=lambda limit: limits[limit])
        n_tasks = 4 * fleet.abreast
        rate = Simulation(Workload(), fleet, np.random.default_rng(0)).tasks_per_second(n_tasks)
        ratio = rate / limits[bound]
        print(f"{name}: paper {limits[bound]:.3f} tasks/s (limit: {bound}), simulation {rate:.3f} ({ratio:.2f} x)")
        agree &= bound == "latency" or abs(ratio - 1) <= 0.15
    return agree


def variants() -> None:
    """Print how the limits move with N, T, the number of weighings and the hit rates."""
    fleet = CASES["1 policy, 1 critic"]
    base = Workload()
    for name, load in {
        "the workload above": base,
        "N = 5": replace(base, n_particles=5),
        "T = 40": replace(base, steps=40),
        "weighed at every step, 89% critic hits": replace(base, weighings=20, critic_hits=0.89),
        "critic without prefix cache": replace(base, critic_hits=0.0),
        "policy without prefix cache": replace(base, policy_hits=0.0),
    }.items():
        limits = on_paper(load, fleet)
        ratio = limits["critic"] / limits["policy"]
        print(
            f"{name}: policy {limits['policy']:.3f}, critic {limits['critic']:.3f} tasks/s; {ratio:.1f} policies/critic"
        )


def check_counts() -> bool:
    """Compare the counts of a run of N particles with N times those of a single run, in the crafting results."""
    costs = {method["name"]: method["cost"] for method in json.loads(CRAFTING.read_text())["methods"]}
    right = True
    for method in ("best-of-n", "amc"):
        for count in ("policy_calls", "policy_output_tokens", "policy_input_tokens"):
            predicted, measured = 15 * costs["react"][count], costs[method][count]
            ratio = measured / predicted
            print(f"{method}, {count}: predicted {predicted:,.0f}, measured {measured:,.0f} ({ratio:.2f} x)")
            right &= abs(ratio - 1) < 0.1
    return right


def check_barrier(runs: int = 4000) -> bool:
    """Compare the cost of waiting once at half-way with the measured 1.18 (docs/speed.md)."""
    latencies = np.random.default_rng(0).lognormal(sigma=0.8, size=(runs, 15, 10))
    halves = latencies[:, :, :5].sum(axis=2), latencies[:, :, 5:].sum(axis=2)
    waiting = (halves[0].max(axis=1) + halves[1].max(axis=1)).mean()
    ratio = waiting / (halves[0] + halves[1]).max(axis=1).mean()
    print(f"one barrier at half-way: {ratio:.2f} x wall time, measured 1.18 x")
    return bool(abs(ratio - 1.18) < 0.03)


def check_server(url: str, model: str) -> None:
    """Fit the two numbers of a running value server to two requests, and predict a third."""
    seconds = {(n, length): _seconds(url, model, n, length) for n, length in ((1, 32), (64, 256), (16, 128))}
    small, large, middle = seconds
    per_token = (seconds[large] - seconds[small]) / (large[0] * large[1] - small[0] * small[1])
    overhead = seconds[small] - per_token * small[0] * small[1]
    predicted = overhead + per_token * middle[0] * middle[1]
    print(
        f"fitted: {1000 * overhead:.1f} ms per iteration, {1 / per_token:,.0f} tokens/s; 16 prompts of 128 tokens: "
        f"predicted {1000 * predicted:.0f} ms, measured {1000 * seconds[middle]:.0f} ms"
    )


def _seconds(url: str, model: str, n: int, length: int, repeats: int = 15) -> float:
    """Median seconds of a request of `n` prompts that no cache holds."""
    rng, taken = np.random.default_rng(time.time_ns()), []
    for _ in range(repeats):
        prompts = rng.integers(5, 250, size=(n, length)).tolist()
        begun = time.perf_counter()
        body = {"model": model, "input": prompts, "use_activation": False}
        httpx.post(f"{url}/classify", json=body, timeout=120).raise_for_status()
        taken.append(time.perf_counter() - begun)
    return float(np.median(taken))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", help="a running value server")
    parser.add_argument("--model", default="value")
    arguments = parser.parse_args()
    right = [check_counts(), check_barrier(), table()]
    variants()
    if arguments.url:
        check_server(arguments.url, arguments.model)
    if not all(right):
        sys.exit("missed: the model differs from the simulation or from a measured point")


if __name__ == "__main__":
    main()
