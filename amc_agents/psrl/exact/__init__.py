"""Classic exploration, exact where a conjugate model exists: what agents made of LLMs are compared with."""

from amc_agents.psrl.exact.agents import ClassicInformationDirected, ClassicPosteriorSampling
from amc_agents.psrl.exact.bandits import BestArm, BetaBernoulli, entropy
from amc_agents.psrl.exact.bayes_optimal_lock import BayesOptimalLock, least_regret
from amc_agents.psrl.exact.known import exact_model
from amc_agents.psrl.exact.model import ExactModel, InformedModel, Policy, Stakes
from amc_agents.psrl.exact.river import TabularRiver
from amc_agents.psrl.exact.sequences import ConsistentSequences

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
