"""Choose the methods of a comparison, with settings that were tuned or that apply to all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from amc_agents.bench.comparison import predicts_return, ready_critic, steered_blindly
from amc_agents.bench.methods import BEST_OF_N, PROMPTED, REACT, Method, Tuned, chosen, named, races
from amc_agents.bench.plan import Plan
from amc_agents.bench.tuned import retuned
from amc_agents.errors import ConfigurationError
from amc_agents.lac.types import LacSettings
from amc_agents.smc import Never
from amc_agents.smc.resampling import Schedule

PlanT = TypeVar("PlanT", bound=Plan)


@dataclass(frozen=True)
class MethodChanges:
    """Settings for all methods that use them; None: each method keeps its own."""

    temperature: float | None = None
    beta: float | None = None
    resample: Schedule | None = None
    success_reward: float | None = None

    def applied_to(self, method: Method) -> Method:
        """Change a method. Greedy play keeps its temperature, and a single trajectory its beta."""
        if self.temperature is not None and method.temperature > 0:
            method = replace(method, temperature=self.temperature)
        if self.beta is not None and not method.single:
            method = replace(method, beta=self.beta)
        if method.resample == Never():
            return method
        if self.resample is not None:
            method = replace(method, resample=self.resample)
        # Only the comparison's own critic predicts a probability of success.
        if self.success_reward is not None and method.critic is None:
            method = replace(method, success_reward=self.success_reward)
        return method


@dataclass(frozen=True)
class MethodChoice:
    """The choice of methods to compare."""

    names: Sequence[str] | None = None
    """Names of methods or groups; None: the standard methods."""
    tuned: Mapping[str, Tuned] = field(default_factory=dict)
    """Method -> the settings that `amc tune` chose."""
    judge: str | None = None
    """Chat model, as `provider:model`, for SMC with a zero-shot critic and an FoA critic."""
    decision_critic: str | None = None
    """Critic of LAC's decisions; None: the comparison's."""
    candidates: int = LacSettings.k
    """K of the methods that decide each step."""
    finish: int = 1
    """Number of particles that end a race."""
    changes: MethodChanges = MethodChanges()

    def applied_to(self, plan: PlanT) -> tuple[PlanT, list[str]]:
        """Return the plan with these methods, and a note for each group of methods that cannot run.

        Raises:
            ConfigurationError: a method has an unknown name, or must prompt a policy that cannot follow instructions.
        """
        methods = [self.changes.applied_to(method) for method in self._named(plan)]
        critic_predicts_return = predicts_return(ready_critic(plan.critic_spec))
        blind = [] if critic_predicts_return else [method for method in methods if steered_blindly(method)]
        unjudged = [] if plan.has_critic else [method for method in methods if method.asks_the_critic]
        notes = [
            f"left out: {', '.join(method.name for method in left_out)} ({reason})"
            for left_out, reason in (
                (blind, "their critic must predict the whole return"),
                (unjudged, "no critic judges their decisions: choose it with --decision-critic"),
            )
            if left_out
        ]
        kept = tuple(method for method in methods if method not in blind and method not in unjudged)
        return replace(plan, methods=kept), notes

    def _named(self, plan: Plan) -> list[Method]:
        methods = retuned(plan.standard_methods(self.judge), self.tuned)
        if self.names is None:
            return methods
        deciding = plan.decision_methods(self.decision_critic, self.candidates)
        searching = retuned(plan.search_methods(), self.tuned)
        prompted = [name for name in named(self.names) if name in PROMPTED]
        if prompted and plan.cannot_prompt:
            raise ConfigurationError(f"{', '.join(prompted)} cannot run: {plan.cannot_prompt}")
        prompting = plan.prompted_methods(self.tuned.get(REACT), self.candidates)
        racing = [race for method in methods if method.name == BEST_OF_N for race in races(method, self.finish)]
        return chosen([*methods, *racing, *deciding, *searching, *prompting], self.names)
