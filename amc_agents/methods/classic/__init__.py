"""Classic exploration, exact where a conjugate model exists: what agents made of LLMs are compared with."""

from amc_agents.methods.classic.agents import ClassicInformationDirected, ClassicPosteriorSampling
from amc_agents.methods.classic.bandits import BestArm, BetaBernoulli, entropy
from amc_agents.methods.classic.bayes_optimal_lock import BayesOptimalLock, least_regret
from amc_agents.methods.classic.known import exact_model
from amc_agents.methods.classic.model import ExactModel, InformedModel, Policy, Stakes
from amc_agents.methods.classic.river import TabularRiver
from amc_agents.methods.classic.sequences import ConsistentSequences

__all__ = [
    "BayesOptimalLock",
    "BestArm",
    "BetaBernoulli",
    "ClassicInformationDirected",
    "ClassicPosteriorSampling",
    "ConsistentSequences",
    "ExactModel",
    "InformedModel",
    "Policy",
    "Stakes",
    "TabularRiver",
    "entropy",
    "exact_model",
    "least_regret",
]
