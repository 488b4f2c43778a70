"""Classic exploration with exact models, as a reference for agents built from language models."""

from amc_agents_exploration.exact.agents import ClassicInformationDirected, ClassicPosteriorSampling
from amc_agents_exploration.exact.bandits import BestArm, BetaBernoulli, entropy
from amc_agents_exploration.exact.bayes_optimal_lock import BayesOptimalLock, least_regret
from amc_agents_exploration.exact.known import exact_model
from amc_agents_exploration.exact.model import ExactModel, InformedModel, Policy, Stakes
from amc_agents_exploration.exact.river import TabularRiver
from amc_agents_exploration.exact.sequences import ConsistentSequences

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
