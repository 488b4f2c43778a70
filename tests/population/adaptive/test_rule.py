"""The rule of adaptive runs, on particles made by hand."""

import numpy as np
import pytest

from amc_agents.critics.spec import UniformCritic
from amc_agents.messages import MessageReader
from amc_agents.population.features.adaptive_size import UNDECIDED, Rule
from amc_agents.population.particle import Particle, Past
from amc_agents.population.settings import Settings
from amc_agents.smc import Adaptive
from amc_agents.types import Step, Task, Trajectory

ADAPTIVE = Adaptive(4, 20)
UNKNOWN = float("nan")


class Critic:
    async def values(self, trajectories):
        raise AssertionError("the rule calls no critic")


def particle(answer="", *, finished=True, return_=0.0, error=None, reader=None):
    trajectory = Trajectory(Task("t", "do"), (Step(answer),))
    past = Past({}, reader or MessageReader(trajectory, {}), finished=finished, return_=return_, error=error)
    return Particle(past, np.random.default_rng(0))


def rule(critic=None, **settings):
    chosen = Settings(n_particles=ADAPTIVE, **{"rewards": None} | settings)
    return Rule(ADAPTIVE, chosen, critic or UniformCritic(), lambda particle: particle.reader.trajectory)


def standing(particles, values=None, critic=None, **settings):
    values = np.full(len(particles), UNKNOWN) if values is None else np.array(values)
    return rule(critic, **settings).standing(particles, values)


def test_the_answer_with_more_votes_leads():
    found = standing([particle("b"), particle("a"), particle("A "), particle("a", error=ValueError())])
    assert found.leaders == (1, 2)
    assert found.overtaking == pytest.approx(0.3125)


def test_copies_of_a_particle_have_one_vote():
    reader = particle("a").reader
    found = standing([particle(reader=reader) for _ in range(6)])
    assert found.overtaking == 0.25
    assert len(found.leaders) == 6


def test_the_best_return_leads_and_other_returns_are_rivals():
    particles = [particle("a", return_=2.0), particle("a", return_=1.0), particle("a", return_=1.0)]
    found = standing(particles, rewards="world")
    assert found.leaders == (0,)
    assert found.overtaking > 0.5


def test_a_success_cannot_be_overtaken():
    particles = [particle(return_=1.0), particle(finished=False)]
    assert standing(particles, rewards="world", success_reward=1.0) == (0.0, (0,))


@pytest.mark.parametrize(
    ("values", "overtaking"),
    [([0.0, 0.001, 0.002], 0.04), ([0.0, 0.5, 0.0], 1.0), ([0.0, UNKNOWN, 0.0], 1.0)],
)
def test_failures_are_overtaken_as_the_critic_predicts(values, overtaking):
    particles = [particle(), particle(finished=False), particle(finished=False)]
    found = standing(particles, values, Critic(), rewards="world", success_reward=1.0)
    assert found.overtaking == pytest.approx(overtaking)


def test_without_rewards_the_critic_gives_the_probability_of_the_answer():
    particles = [particle(), particle(), particle(finished=False)]
    found = standing(particles, [0.6, 1.8, 1.99], Critic(), success_reward=2.0)
    assert found.overtaking == pytest.approx(0.1)
    assert found.leaders == (1,)


def test_nothing_leads_before_a_particle_has_ended_and_been_valued():
    assert standing([particle(finished=False)]) == UNDECIDED
    assert standing([particle()], [UNKNOWN], Critic(), success_reward=1.0) == UNDECIDED
    assert standing([particle(return_=1.0)], rewards="world", success_reward=1.0, select="weight") == UNDECIDED


def test_the_next_size_weighs_the_particles_from_which_it_draws():
    particles = [particle(finished=False), particle(finished=False), particle(), particle(finished=False)]
    size = rule(Critic(), success_reward=1.0).next_size
    log_weights = np.log([0.75, 0.25, 9.0, 1e-300])
    log_weights[3] = -np.inf
    assert size(particles, np.array([0.2, 0.6, 0.0, 1.0]), log_weights, 0) == 9  # A mean of 0.3.
    assert size(particles, np.array([0.0, 0.0, 0.0, 1.0]), log_weights, 12) == 8
    assert rule(success_reward=1.0).next_size(particles, np.zeros(4), log_weights, 0) == 8
