"""amc-agents: what reinforcement learning would have given an agent, at test time, for models that cannot be trained.

Names are imported when they are first used, so that `import amc_agents` costs nothing. The packages, each of which
imports only from those below it in this list:

| package | content |
|---|---|
| `cli` | the command `amc` |
| `operations` | importing logs, switching an agent on, pages, traces, servers and their checks |
| `bench` | comparisons, tuning and their reports |
| `training` | datasets of trajectories, and critics trained on them |
| `population`, `lac`, `pnlc`, `psrl` | the methods, each from its decision to its LangGraph nodes |
| `runtime` | LangGraph and LangChain code that all methods share |
| `decisions` | code that the decisions of LAC, PNLC and PSRL share |
| `critics` | critics, and the strings that name them |
| `envs`, `models` | worlds; chat models that run in this process |
| `smc` | the equations of AMC |
| `concurrency` | event loops and threads |

`testing` has checks and fakes for your own worlds, critics and agents. The modules beside the packages (`types`,
`errors`, `run`, `settings`, `config`, `usage`, ...) hold what several of them share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amc_agents._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from amc_agents.budget import Budget
    from amc_agents.commits import current_commit
    from amc_agents.critics.spec import parse_critic
    from amc_agents.errors import AmcError, BudgetExhausted
    from amc_agents.lac.model import ActorCritic, actor_critic_model, actor_critic_node
    from amc_agents.operations.rollout.canary_graph import canary
    from amc_agents.operations.rollout.shadow_graph import shadow
    from amc_agents.pnlc.model import CritiqueRefine, critique_refine_model, critique_refine_node
    from amc_agents.population.graph import AmcGraph
    from amc_agents.population.race_settings import EarlyStop, Race
    from amc_agents.population.wrap import amc
    from amc_agents.psrl.middleware import InformationDirected, PosteriorSampling
    from amc_agents.psrl.nodes import information_directed_nodes, posterior_sampling_nodes
    from amc_agents.psrl.options import RoleModel
    from amc_agents.psrl.posterior.store import StorePosterior
    from amc_agents.run import Population, Run
    from amc_agents.runtime.effects import Deferred, Retried, effect
    from amc_agents.runtime.text_agent import text_agent
    from amc_agents.runtime.world import current_environment, use_environment
    from amc_agents.settings import AmcSettings
    from amc_agents.smc import Adaptive, AtSteps, EssBelow, EveryStep, Never
    from amc_agents.types import Critic, Environment, Forkable, Step, Task, TimeStep, Trajectory
    from amc_agents.usage import Usage

__version__ = "0.1.0"

__all__ = [
    "ActorCritic",
    "Adaptive",
    "AmcError",
    "AmcGraph",
    "AmcSettings",
    "AtSteps",
    "Budget",
    "BudgetExhausted",
    "Critic",
    "CritiqueRefine",
    "Deferred",
    "EarlyStop",
    "Environment",
    "EssBelow",
    "EveryStep",
    "Forkable",
    "InformationDirected",
    "Never",
    "Population",
    "PosteriorSampling",
    "Race",
    "Retried",
    "RoleModel",
    "Run",
    "Step",
    "StorePosterior",
    "Task",
    "TimeStep",
    "Trajectory",
    "Usage",
    "actor_critic_model",
    "actor_critic_node",
    "amc",
    "canary",
    "critique_refine_model",
    "critique_refine_node",
    "current_commit",
    "current_environment",
    "effect",
    "information_directed_nodes",
    "parse_critic",
    "posterior_sampling_nodes",
    "shadow",
    "text_agent",
    "use_environment",
]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "ActorCritic": "lac.model",
        "Adaptive": "smc",
        "AmcError": "errors",
        "AmcGraph": "population.graph",
        "AmcSettings": "settings",
        "AtSteps": "smc",
        "Budget": "budget",
        "BudgetExhausted": "errors",
        "Critic": "types",
        "CritiqueRefine": "pnlc.model",
        "Deferred": "runtime.effects",
        "Environment": "types",
        "EssBelow": "smc",
        "EarlyStop": "population.race_settings",
        "EveryStep": "smc",
        "Forkable": "types",
        "InformationDirected": "psrl.middleware",
        "Never": "smc",
        "Population": "run",
        "PosteriorSampling": "psrl.middleware",
        "Retried": "runtime.effects",
        "Race": "population.race_settings",
        "RoleModel": "psrl.options",
        "Run": "run",
        "Step": "types",
        "StorePosterior": "psrl.posterior.store",
        "Task": "types",
        "TimeStep": "types",
        "Trajectory": "types",
        "Usage": "usage",
        "actor_critic_model": "lac.model",
        "actor_critic_node": "lac.model",
        "amc": "population.wrap",
        "canary": "operations.rollout.canary_graph",
        "critique_refine_model": "pnlc.model",
        "critique_refine_node": "pnlc.model",
        "current_commit": "commits",
        "current_environment": "runtime.world",
        "effect": "runtime.effects",
        "information_directed_nodes": "psrl.nodes",
        "parse_critic": "critics.spec",
        "posterior_sampling_nodes": "psrl.nodes",
        "shadow": "operations.rollout.shadow_graph",
        "text_agent": "runtime.text_agent",
        "use_environment": "runtime.world",
    },
)
