"""The promises of sequential Monte Carlo, against a world whose posterior and log Z are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from amc_agents.smc import SCHEMES, AtSteps, EssBelow, EveryStep, Never, log_mean_exp
from amc_agents.smc import filter as smc_filter
from amc_agents.testing.enumerable import EnumerableWorld, run_smc

WORLD, BETA = EnumerableWorld.random(3), 0.7
LOG_Z = WORLD.log_evidence(BETA)
N_RUNS = 20_000

schemes = pytest.mark.parametrize("scheme", sorted(SCHEMES))
modes = pytest.mark.parametrize("mode", ["keep", "retire"])
criteria = pytest.mark.parametrize("schedule", [AtSteps(1, 3), EssBelow(0.8), EveryStep()], ids=repr)


def assert_unbiased(log_evidence):
    ratio = np.exp(log_evidence - LOG_Z)
    error = np.std(ratio, ddof=1) / np.sqrt(len(ratio))
    assert error < 0.01, f"the test is too weak: standard error {error:.4f}"
    assert abs(np.mean(ratio) - 1.0) < 4 * error, f"biased: {np.mean(ratio):.4f} +- {error:.4f}"


def many_runs(schedule, potential, *, seed=0, **settings):
    return run_smc(WORLD, np.random.default_rng(seed), 4, schedule, potential, batch=(N_RUNS,), **settings)


@pytest.mark.thorough
@schemes
@modes
@criteria
@pytest.mark.parametrize("rewards", ["rewards_seen", "rewards_hidden"])
def test_the_evidence_is_unbiased(scheme, mode, schedule, rewards):
    run = many_runs(schedule, getattr(WORLD, rewards)(BETA), scheme=scheme, mode=mode)
    assert len(run.ancestors) > 0
    assert_unbiased(run.log_evidence)


@pytest.mark.parametrize("rewards", ["rewards_seen", "rewards_hidden"])
def test_the_evidence_is_unbiased_without_resampling(rewards):
    run = many_runs(Never(), getattr(WORLD, rewards)(BETA))
    assert run.ancestors == ()
    assert_unbiased(run.log_evidence)


def failing(potential, *, ends_known, every=2):
    """The potential as a run has it whose critic fails at every second weighing point before the end (or every one)."""
    calls = 0

    def known_in_part(nodes):
        nonlocal calls
        calls += 1
        leaf = WORLD.is_leaf[nodes]
        answered = calls % every != 0 or bool(leaf.all())
        return np.where(answered | (leaf & ends_known), potential(nodes), np.nan)

    return known_in_part


@pytest.mark.thorough
@modes
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("schedule", [AtSteps(1, 3), EssBelow(0.8), EveryStep()], ids=repr)
@pytest.mark.parametrize("rewards", ["rewards_seen", "rewards_hidden"])
def test_the_evidence_is_unbiased_where_a_critic_fails_on_the_way(mode, every, schedule, rewards):
    # With rewards seen, ends need no critic; without, a finished particle waits in its slot for its last weighing.
    potential = failing(getattr(WORLD, rewards)(BETA), ends_known=rewards == "rewards_seen", every=every)
    run = many_runs(schedule, potential, mode=mode)
    assert_unbiased(run.log_evidence)


@pytest.mark.parametrize("rewards", ["rewards_seen", "rewards_hidden"])
def test_retiring_before_the_last_weighing_is_biased(rewards, monkeypatch):
    def resample(rng, state, finished, *args, **settings):
        return smc_resample(rng, state, WORLD.is_leaf[at[-1]], *args, **settings)

    def seen(nodes):
        at.append(nodes)
        return potential(nodes)

    at: list[np.ndarray] = []
    smc_resample = smc_filter.resample
    monkeypatch.setattr(smc_filter, "resample", resample)
    potential = failing(getattr(WORLD, rewards)(BETA), ends_known=False, every=1)
    with pytest.raises(AssertionError, match="biased"):
        assert_unbiased(many_runs(EveryStep(), seen).log_evidence)


@modes
def test_one_particle_is_unbiased_too(mode):
    run = run_smc(
        WORLD, np.random.default_rng(1), 1, EveryStep(), WORLD.rewards_seen(BETA), mode=mode, batch=(2 * N_RUNS,)
    )
    assert_unbiased(run.log_evidence)
    np.testing.assert_allclose(run.log_evidence, WORLD.returns[run.nodes[:, 0]] / BETA, atol=1e-9)


@pytest.mark.thorough
@modes
@criteria
@pytest.mark.parametrize("rewards", ["rewards_seen", "rewards_hidden"])
def test_expectations_under_the_unnormalised_posterior_are_unbiased(mode, schedule, rewards):
    run = many_runs(schedule, getattr(WORLD, rewards)(BETA), mode=mode, seed=2)
    weights = np.exp(run.log_weights - LOG_Z)
    for leaf, share in zip(WORLD.leaves, WORLD.posterior(BETA), strict=True):
        estimates = np.sum(np.where(run.nodes == leaf, weights, 0.0), axis=-1)
        assert abs(np.mean(estimates) - share) < 4.5 * np.std(estimates) / np.sqrt(N_RUNS), leaf


def test_evidence_as_a_sum_of_single_steps_is_biased(monkeypatch):
    steps: list[np.ndarray] = []

    def weigh(state, potentials, known=None):
        after = smc_weigh(state, potentials, known)
        steps.append(log_mean_exp(after.log_weights_since - state.log_weights_since))
        return after

    smc_weigh = smc_filter.weigh
    monkeypatch.setattr(smc_filter, "weigh", weigh)
    run = many_runs(EssBelow(0.5), WORLD.rewards_seen(BETA), mode="keep")
    assert_unbiased(run.log_evidence)
    with pytest.raises(AssertionError, match="biased"):
        assert_unbiased(np.sum(steps, axis=0))


@criteria
def test_retiring_without_weights_is_biased(schedule, monkeypatch):
    def resample(rng, state, *args, **settings):
        after, info = smc_resample(rng, state, *args, **settings)
        share = np.log(np.maximum(info.retired.mean(-1), 1e-300))
        return replace(after, log_retired=np.logaddexp(state.log_retired, share)), info

    smc_resample = smc_filter.resample
    monkeypatch.setattr(smc_filter, "resample", resample)
    with pytest.raises(AssertionError, match="biased"):
        assert_unbiased(many_runs(schedule, WORLD.rewards_seen(BETA)).log_evidence)


@pytest.mark.thorough
@modes
@criteria
def test_a_critic_that_is_not_zeroed_at_the_end_is_biased(mode, schedule):
    table = (WORLD.returns + WORLD.imperfect_critic) / BETA
    with pytest.raises(AssertionError, match="biased"):
        assert_unbiased(many_runs(schedule, lambda nodes: table[nodes], mode=mode).log_evidence)


@pytest.mark.thorough
@modes
@criteria
def test_a_hidden_return_that_is_zeroed_at_the_end_is_biased(mode, schedule):
    guess = WORLD.rewards_hidden(BETA)
    run = many_runs(schedule, lambda nodes: np.where(WORLD.is_leaf[nodes], 0.0, guess(nodes)), mode=mode)
    with pytest.raises(AssertionError, match="biased"):
        assert_unbiased(run.log_evidence)


def total_variation(n_particles, seed, schedule, rewards="rewards_seen", **settings):
    potential = getattr(WORLD, rewards)(BETA)
    run = run_smc(WORLD, np.random.default_rng(seed), n_particles, schedule, potential, **settings)
    assert bool(run.ancestors) == (schedule != Never())
    return 0.5 * np.sum(np.abs(run.posterior(WORLD) - WORLD.posterior(BETA)))


CASES = [
    *[(schedule, "systematic", mode) for schedule in (EssBelow(0.9), EveryStep()) for mode in ("keep", "retire")],
    *[(AtSteps(1, 3), scheme, mode) for scheme in sorted(SCHEMES) for mode in ("keep", "retire")],
    (Never(), "systematic", "retire"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("schedule", "scheme", "mode"), CASES, ids=repr)
def test_the_particles_approach_the_posterior(schedule, scheme, mode):
    sizes = np.array([1250, 5000, 20_000])
    distances = np.array(
        [[total_variation(n, seed, schedule, scheme=scheme, mode=mode) for seed in range(24)] for n in sizes]
    )
    assert distances[-1].max() < 0.03
    slope = np.polyfit(np.log(sizes), np.log(distances.mean(axis=1)), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.1)


@modes
def test_the_particles_approach_the_posterior_with_rewards_hidden(mode):
    assert total_variation(20_000, 0, AtSteps(1, 3), "rewards_hidden", mode=mode) < 0.03


@pytest.mark.parametrize("schedule", [AtSteps(1, 3), EssBelow(0.9), EveryStep()], ids=repr)
def test_retiring_without_weights_misses_the_posterior(schedule):
    run = run_smc(WORLD, np.random.default_rng(0), 20_000, schedule, WORLD.rewards_seen(BETA))
    assert len(run.ancestors) > 0
    flat = replace(run, log_weights=np.where(run.log_weights > -np.inf, 0.0, -np.inf))
    assert 0.5 * np.sum(np.abs(flat.posterior(WORLD) - WORLD.posterior(BETA))) > 0.03
