"""The SMC step (weigh, resample), the evidence and the lineages, as pure functions of an immutable state.

Weights are absolute: each particle starts with 1/N, and the sum of all weights, retired and live, is the estimate of
Z = E_pi[exp(R_T / beta)] at any time. Weighing multiplies a weight by exp(phi_b - phi_a) (eq. 4, telescoped);
resampling divides the total weight of the particles that it draws from equally among their offspring, which leaves
expectations unchanged.

Leading axes are independent populations, `[..., N]`; a single population is `[N]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from amc_agents.errors import AllWeightsZero, ConfigurationError, PopulationError
from amc_agents.quoting import quoted
from amc_agents.smc.resampling import Scheme, keep_in_place, resolve_scheme
from amc_agents.smc.weights import BoolArray, log_sum_exp
from amc_agents.types import FloatArray, IntArray

FinishedMode = Literal["retire", "keep"]
"""Treatment of finished particles at a resampling: retire them, or resample them with the others."""


@dataclass(frozen=True, slots=True, eq=False)
class FilterState:
    """State of N particles, in their slots, between two steps."""

    log_weights: FloatArray
    """`[..., N]` absolute log-weights; the sum of the weights, retired ones included, is Z."""
    potentials: FloatArray
    """`[..., N]` phi at each particle's last weighing, in units of beta; 0 before the first state."""
    log_weights_since: FloatArray
    """`[..., N]` log-weights accumulated since the last resampling; 0 at the start."""
    log_retired: FloatArray
    """`[...]` log of the total retired weight; -inf if no particle is retired."""


@dataclass(frozen=True, slots=True, eq=False)
class ResamplingInfo:
    """Result of a resampling."""

    resampled: BoolArray
    """`[...]` True for populations that were resampled."""
    ancestors: IntArray
    """`[..., M]` the slot that each slot continues; its own if its particle survives or nothing was resampled."""
    retired: BoolArray
    """`[..., N]` True for slots whose finished particle was retired; they now continue a live particle."""
    retired_log_weights: FloatArray
    """`[..., N]` absolute log-weights of the retired particles; -inf in the other slots."""


def init(n_particles: int, batch: tuple[int, ...] = ()) -> FilterState:
    """Create the state of N particles before their first state: weight 1/N each, potential 0.

    Args:
        n_particles: N, at least 1.
        batch: leading axes, for many populations at once.

    Raises:
        ConfigurationError: for fewer than one particle.
    """
    if n_particles < 1:
        raise ConfigurationError(f"n_particles must be at least 1; got {quoted(n_particles)}")
    shape = (*batch, n_particles)
    return FilterState(
        log_weights=np.full(shape, -np.log(n_particles)),
        potentials=np.zeros(shape),
        log_weights_since=np.zeros(shape),
        log_retired=np.full(batch, -np.inf),
    )


def restart(n_particles: int, potential: float) -> FilterState:
    """Create the state of N particles that all continue one particle.

    The evidence then starts again: it is the conditional Z = E_pi[exp(phi_T - phi)] given the past of that particle.

    Args:
        n_particles: N, at least 1.
        potential: phi of the past, from which the next weighing counts.
    """
    return replace(init(n_particles), potentials=np.full(n_particles, potential))


def weigh(state: FilterState, potentials: FloatArray, known: BoolArray | None = None) -> FilterState:
    """Multiply each weight by exp(phi_new - phi_old).

    Args:
        state: the particles at their last weighing, any number of steps ago.
        potentials: `[..., N]` the new phi; -inf for a failed particle, whose weight is 0 from then on.
        known: `[..., N]` True where phi is known. The other particles keep their weight, and their next weighing
            accounts for the difference. None: all are known.

    Raises:
        PopulationError: for another shape, NaN or +inf.
    """
    if potentials.shape != state.potentials.shape:
        raise PopulationError(f"expected potentials of shape {state.potentials.shape}, got {potentials.shape}")
    if known is not None:
        potentials = np.where(known, potentials, state.potentials)
    if np.any(np.isnan(potentials) | np.isposinf(potentials)):
        raise PopulationError("a potential is NaN or +inf; it must be finite, or -inf for a failed particle")
    dead = np.isneginf(state.log_weights) | np.isneginf(potentials)
    gain = np.full(potentials.shape, -np.inf)
    np.subtract(potentials, state.potentials, out=gain, where=~dead)  # -inf - -inf would be nan
    return replace(
        state,
        log_weights=state.log_weights + gain,
        potentials=potentials,
        log_weights_since=state.log_weights_since + gain,
    )


def resample(
    rng: np.random.Generator,
    state: FilterState,
    finished: BoolArray,
    scheme: str | Scheme = "systematic",
    mode: FinishedMode = "retire",
    mask: BoolArray | None = None,
    n_offspring: int | None = None,
) -> tuple[FilterState, ResamplingInfo]:
    """Draw M ancestors; each offspring gets an equal share of the total weight of the particles drawn from.

    `"keep"` draws from all particles. `"retire"` draws from the live particles only and retires the finished ones with
    their absolute weights. A population is left unchanged if it has no live particle, or if all of its weight is on
    finished particles.

    Args:
        rng: source of the draws.
        state: the particles, weighed.
        finished: `[..., N]` particles whose trajectory has ended.
        scheme: a name in `SCHEMES`, or a `Scheme` function.
        mode: `"retire"` or `"keep"`.
        mask: `[...]` the populations to resample; None: all.
        n_offspring: M, at least N; None: N. A larger population leaves expectations and Z unbiased if M depends only on
            the past. A population that is left unchanged keeps its size.

    Raises:
        PopulationError: M is less than N, or only some populations of a batch could grow.
        AllWeightsZero: all weights of a population are 0, retired particles included.
        ConfigurationError: for an unknown scheme or mode.
    """
    draw = resolve_scheme(scheme)
    if mode not in get_args(FinishedMode):
        raise ConfigurationError(f"expected finished='retire' or 'keep'; got {quoted(mode)}")
    n_particles = state.log_weights.shape[-1]
    n_slots = n_particles if n_offspring is None else n_offspring
    wanted = np.broadcast_to(True if mask is None else mask, state.log_retired.shape)
    if np.any(wanted & np.isneginf(log_evidence(state))):
        raise AllWeightsZero(n_particles, "a resampling point")

    retiring = finished if mode == "retire" else np.zeros_like(finished)
    drawable = np.where(retiring, -np.inf, state.log_weights)
    total = log_sum_exp(drawable)[..., np.newaxis]
    acts = wanted[..., np.newaxis] & (total > -np.inf)
    if n_slots != n_particles and not acts.all():
        n_slots = _unchanged_size(n_particles, acts)
    if n_slots < n_particles:
        raise PopulationError(f"expected at least as many offspring as particles: {n_particles}, got {n_slots}")
    drawn = draw(rng, np.where(acts, drawable, 0.0), n_slots)
    ancestors = np.where(acts, keep_in_place(drawn), np.arange(n_slots))
    retired = acts & retiring
    retired_log_weights = np.where(retired, state.log_weights, -np.inf)
    after = FilterState(
        log_weights=np.where(acts, total - np.log(n_slots), _at(state.log_weights, ancestors)),
        potentials=_at(state.potentials, ancestors),
        log_weights_since=np.where(acts, 0.0, _at(state.log_weights_since, ancestors)),
        log_retired=np.logaddexp(state.log_retired, log_sum_exp(retired_log_weights)),
    )
    return after, ResamplingInfo(acts[..., 0], ancestors, retired, retired_log_weights)


def begin_again(state: FilterState, earlier: int, n_particles: int) -> tuple[FilterState, float]:
    """Start new particles beside those of earlier rounds, whose live particles are retired.

    The estimates of all rounds are averaged, each with its share of the particles.

    Args:
        state: one population, at its end.
        earlier: number of particles of the earlier rounds, this population included.
        n_particles: number of new particles.

    Returns:
        The new state, and the log-factor of all weights so far.
    """
    new, scale = init(n_particles), float(np.log(earlier) - np.log(earlier + n_particles))
    return replace(
        new,
        log_weights=np.full(n_particles, -np.log(earlier + n_particles)),
        log_retired=log_evidence(state) + scale,
    ), scale


def _unchanged_size(n_particles: int, acts: BoolArray) -> int:
    """Return N if no population is resampled; a batch has a single size."""
    if acts.any():
        raise PopulationError("only some populations of the batch are resampled: it cannot grow at this point")
    return n_particles


def _at(of_slots: FloatArray, ancestors: IntArray) -> FloatArray:
    return np.take_along_axis(of_slots, ancestors, axis=-1)


def log_evidence(state: FilterState) -> FloatArray:
    """`[...]` log Z: its exp is an unbiased estimate of E_pi[exp(phi_T)], at any N and criterion.

    It is the log of the sum of all weights, retired and live. Adding up, at each resampling and at the end, the
    log-mean-exp of the weights accumulated since the previous resampling gives the same number.
    """
    total: FloatArray = np.logaddexp(state.log_retired, log_sum_exp(state.log_weights))
    return total


@dataclass(frozen=True, eq=False)
class Genealogy:
    """The ancestry of N particles over P weighing points.

    Segment p comes before point p; segment P is the last. Segment and slot identify a particle. A resampling may change
    the number of particles, as in an adaptive run.
    """

    n_particles: int
    """N at the start."""
    ancestors: Sequence[IntArray | None]
    """`[P]` arrays `[N after point p]` with the slot that each slot continues, or None where nothing was resampled."""
    retired: Sequence[Sequence[int]] = ()
    """`[P]` slots retired at each point; empty if none ever was."""

    def lineage(self, slot: int, segment: int | None = None) -> tuple[int, ...]:
        """The slots of a particle and its ancestors, oldest first.

        Args:
            slot: the particle's slot.
            segment: its segment; None: the last. A particle retired at point p is in segment p.

        Returns:
            `[segment + 1]` slots, one per segment.
        """
        last = len(self.ancestors) if segment is None else segment
        slots = [slot]
        for ancestors in reversed(self.ancestors[:last]):
            slots.append(slots[-1] if ancestors is None else int(ancestors[slots[-1]]))
        return tuple(reversed(slots))

    @property
    def sizes(self) -> tuple[int, ...]:
        """`[P + 1]` number of particles in each segment."""
        sizes = [self.n_particles]
        for ancestors in self.ancestors:
            sizes.append(sizes[-1] if ancestors is None else len(ancestors))
        return tuple(sizes)

    @property
    def survivors(self) -> tuple[int, ...]:
        """`[P]` number of distinct ancestors at each point."""
        before = self.sizes[:-1]
        return tuple(
            size if ancestors is None else len(np.unique(ancestors))
            for size, ancestors in zip(before, self.ancestors, strict=True)
        )

    @property
    def roots(self) -> frozenset[int]:
        """The initial slots from which the final particles descend, retired particles included."""
        live = {self.lineage(slot)[0] for slot in range(self.sizes[-1])}
        retired = {self.lineage(slot, point)[0] for point, slots in enumerate(self.retired) for slot in slots}
        return frozenset(live | retired)
