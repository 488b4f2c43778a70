"""A comparison of methods around the user's own agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from amc_agents.bench import methods
from amc_agents.bench.comparison import Comparison, Played
from amc_agents.bench.methods import Method, Tuned
from amc_agents.bench.own.agent import OwnAgent
from amc_agents.bench.tuning import scaled
from amc_agents.runtime.deciding_model import Sink
from amc_agents.types import Task

LABELS = {methods.REACT: "plain agent", methods.REACT_GREEDY: "plain agent, greedy"}
_STEPS = (6, 12)
"""Steps after which to resample an episode of 20 steps, before they are tuned."""
_BETA = 0.1
"""For a success that returns 1, before it is tuned."""


@dataclass(frozen=True)
class OwnComparison(Comparison):
    """Methods x tasks x seeds with an agent of the user, whose `make_agent` stands for policy and agent."""

    own: OwnAgent = field(kw_only=True)

    def played(self, method: Method, task: Task, sink: Sink | None = None) -> Played:
        """Return the agent of a run, its input, and its arguments of `amc`."""
        graph = self.own.make_agent(method.temperature)
        return Played(graph, self.own.arguments_for(task, graph), self.input_of(method, task))

    def input_of(self, method: Method, task: Task) -> Mapping[str, Any]:
        """Return the agent's input."""
        return self.own.input_of(task)


def own_methods(own: OwnAgent, judge: str | None = None) -> list[Method]:
    """Return the standard methods for an agent, with settings that suit its horizon and the size of a success.

    Args:
        own: the agent.
        judge: a chat model, as `provider:model`, for SMC with this model as critic.
    """
    plain = Tuned(temperature=own.temperature, beta=_BETA * own.success)
    steered = replace(plain, steps=scaled(_STEPS, own.horizon))
    standard = [
        methods.react(plain),
        *([] if own.temperature_is_fixed else [methods.react_greedy()]),
        methods.best_of_n(plain),
        methods.smc(steered),
        methods.amc(steered),
        methods.amc_hidden(steered),
        *(methods.judged(judge, steered) if judge else []),
    ]
    return [replace(method, label=LABELS.get(method.name, method.label)) for method in standard]


def same_agent(graph: Any) -> Any:
    """Return a graph: the user's `make_agent` has built it already."""
    return graph
