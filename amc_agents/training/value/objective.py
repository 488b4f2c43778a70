"""The objective of a value model, its targets at the states of trajectories, and the settings of its training.

Notation (AMC, section 2.3): G_t = r_{t+1} + ... + r_T is the return still to come at s_t, and R = r_1 + ... + r_T. In
eq. 6 the reward of the state itself is known, so a model of the future predicts only G_t.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from amc_agents.critics.render import DIALOGUE, PLAIN, PromptFormat
from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.types import FloatArray, Trajectory

KeyArray = npt.NDArray[np.uint64]
"""`[S, 2]`, 128-bit fingerprints of states."""


@dataclass(frozen=True)
class Objective:
    """The value to learn.

    | setting | score that minimises the loss at a state s |
    |---|---|
    | squared | E[G given s] (eq. 7) |
    | squared, soft | beta log E[exp(G / beta) given s] (eq. 5), the mean over the data's continuations of s |
    | weighted | E[G exp(G / beta) given s] / E[exp(G / beta) given s] |
    | bce | the log-odds of G = 1 given s |

    "weighted" is our reading of the paper's "exponentially weighted MSE", of which table 7 gives only the name: the
    squared error with each state weighted by exp(G / beta), the weights having mean 1 over the training set. Its
    minimiser is the mean of G under the tilted policy pi(continuation) exp(G / beta), which is the derivative of
    log E[exp(G / beta)] with respect to 1 / beta. It lies above the value of eq. 5; both are equal if G is constant.
    """

    loss: Literal["squared", "weighted", "bce"] = "squared"
    """Squared error, squared error with exponential weights, or binary cross-entropy of a logit for returns 0 and 1."""
    target: Literal["future", "return"] = "future"
    """G: "future" is the return still to come, G_t (eq. 7); "return" is the whole return R at every state."""
    beta: float | None = None
    """Temperature of eq. 5 (soft) or of the weights (weighted), in reward units; None for other objectives."""
    soft: bool = False
    """Use the targets of eq. 5. They differ from those of eq. 7 only with several trajectories per task."""

    def __post_init__(self) -> None:
        """Refuse combinations without a meaning."""
        if self.loss not in ("squared", "weighted", "bce"):
            raise ConfigurationError(f"loss is {quoted(self.loss)}: expected 'squared', 'weighted' or 'bce'")
        if self.target not in ("future", "return"):
            raise ConfigurationError(f"target is {quoted(self.target)}: expected 'future' or 'return'")
        if self.beta is not None and not 0 < self.beta < math.inf:
            raise ConfigurationError(f"beta is {self.beta}: expected a positive number, in reward units")
        self._check_beta()

    def _check_beta(self) -> None:
        if self.soft and self.loss == "weighted":
            raise ConfigurationError(
                "soft and loss='weighted' both favour high returns: choose soft (eq. 5) or weighted (table 7)"
            )
        user = "soft" if self.soft else "loss='weighted'" if self.loss == "weighted" else None
        if user is not None and self.beta is None:
            raise ConfigurationError(f"{user} needs beta, in reward units: use the beta of the runs with this critic")
        if user is None and self.beta is not None:
            raise ConfigurationError(
                f"beta is {self.beta}, but loss={quoted(self.loss)} with soft=False has no beta: leave it out, or set "
                "soft"
            )

    def check_best_of(self, best_of: int | None) -> None:
        """Refuse eq. 5 over only the best trajectories (`dataset.iter_records`).

        Raises:
            ConfigurationError: `soft` and `best_of` are both set.
        """
        if self.soft and best_of is not None:
            raise ConfigurationError(
                f"best_of {best_of} with soft: eq. 5 averages over all continuations of a state, and the best ones are "
                "not a sample of them; leave out best_of or soft"
            )

    @property
    def stored_beta(self) -> float | None:
        """The only beta that the trained values are valid for (`ValueCheckpoint.beta`); None: any beta."""
        return self.beta if self.soft else None

    @property
    def link(self) -> Literal["identity", "sigmoid"]:
        """Map from score to value."""
        return "sigmoid" if self.loss == "bce" else "identity"


def returns_to_come(trajectory: Trajectory) -> FloatArray:
    """Return the `[T + 1]` G_t = r_{t+1} + ... + r_T of all states (the target of eq. 7); 0 at the last state.

    >>> from amc_agents.types import Step, Task
    >>> steps = (Step("a"), Step("b", reward=0.25), Step("c", reward=1.0))
    >>> returns_to_come(Trajectory(Task("t", ""), steps, done=True)).tolist()
    [1.25, 1.25, 1.0, 0.0]
    """
    rewards = np.array([step.reward for step in trajectory.steps] + [0.0])
    return np.cumsum(rewards[::-1])[::-1].copy()


def state_returns(trajectory: Trajectory, objective: Objective) -> FloatArray:
    """Return the `[T + 1]` returns of this trajectory at all its states, before any average over trajectories.

    Raises:
        ConfigurationError: the trajectory is not done, so that its return is unknown; a return is not finite; or the
            loss is binary and a return is neither 0 nor 1.
    """
    name = f"trajectory of task {quoted(trajectory.task.id)}"
    if not trajectory.done:
        raise ConfigurationError(f"a {name} is not done: its return is unknown; leave it out")
    if objective.target == "future":
        returns = returns_to_come(trajectory)
    else:
        returns = np.full(len(trajectory.steps) + 1, trajectory.return_)
    if not np.isfinite(returns).all():
        infinite = returns[~np.isfinite(returns)][0]
        raise ConfigurationError(f"a {name} has a return of {infinite}: expected finite rewards")
    if objective.loss == "bce":
        other = sorted({float(value) for value in returns if value not in (0.0, 1.0)})
        if other:
            raise ConfigurationError(
                f"loss='bce' needs returns of 0 or 1 at every state; a {name} has {', '.join(map(str, other[:5]))}: "
                "use loss='squared', or a single reward of 1 for success"
            )
    return returns


def state_keys(trajectory: Trajectory) -> KeyArray:
    """Return the `[T + 1, 2]` fingerprints of all states: of the task and the steps so far, as a critic reads them.

    Two trajectories share a state if task, instruction, thoughts, actions and observations are equal up to it. Rewards
    and message ids are ignored.
    """
    digest = hashlib.blake2b(_field(trajectory.task.id, trajectory.task.instruction), digest_size=16)
    keys = [digest.digest()]
    for step in trajectory.steps:
        digest.update(_field(step.thought, step.action, step.observation))
        keys.append(digest.copy().digest())
    return np.frombuffer(b"".join(keys), dtype=np.uint64).reshape(-1, 2)


def soft_returns(keys: KeyArray, returns: FloatArray, beta: float) -> FloatArray:
    """Compute eq. 5 over a set of states: beta log mean exp(G / beta) over all entries with the same state.

    A state that only one trajectory passes keeps the return of that trajectory: eq. 7.

    Args:
        keys: `[S, 2]` fingerprint of each entry's state.
        returns: `[S]` the entries' returns.
        beta: temperature of eq. 5, in reward units.

    Returns:
        `[S]` values in the order of the entries.
    """
    if not len(keys):
        return np.zeros(0)
    # Sorted by return within a state, so that the sum does not depend on the order of the trajectories.
    order = np.lexsort((returns, keys[:, 1], keys[:, 0]))
    ordered = keys[order]
    starts = np.flatnonzero(np.r_[True, (ordered[1:] != ordered[:-1]).any(axis=1)])
    counts = np.diff(np.r_[starts, len(keys)])
    sorted_returns = returns[order]
    # Shifted by the largest return of each group: no beta overflows, and equal returns are kept exactly.
    largest = np.maximum.reduceat(sorted_returns, starts)
    tilted = np.exp((sorted_returns - np.repeat(largest, counts)) / beta)
    soft = largest + beta * np.log(np.add.reduceat(tilted, starts) / counts)
    values = np.empty(len(returns))
    values[order] = np.repeat(soft, counts)
    return values


class ExponentialWeights:
    """The weights of loss="weighted": exp(G / beta) / mean exp(G / beta), the mean over a set that is added in pieces.

    Exponents are relative to the largest return so far: no beta overflows, and equal returns get weight 1.
    """

    def __init__(self, beta: float) -> None:
        self.beta = beta
        self._largest, self._sum, self._n = -math.inf, 0.0, 0

    def add(self, returns: FloatArray) -> None:
        """Add `[S]` returns to the set."""
        if len(returns):
            largest = max(self._largest, float(returns.max()))
            self._sum *= math.exp((self._largest - largest) / self.beta)
            self._sum += float(np.exp((returns - largest) / self.beta).sum())
            self._largest, self._n = largest, self._n + len(returns)

    def of(self, returns: FloatArray) -> FloatArray:
        """Return the `[S]` weights of returns of the set, which must not be empty."""
        return np.asarray(np.exp((returns - self._largest) / self.beta) / (self._sum / self._n))


def _field(*texts: str) -> bytes:
    # JSON lists, so that different rounds never give the same bytes.
    return json.dumps(texts).encode()


@dataclass(frozen=True)
class ValueTrainingSettings:
    """Settings of a value model's training. The defaults are those of the paper's table 7, with a squared error."""

    learning_rate: float = 1e-5
    epochs: int = 3
    batch_size: int = 16
    """Rows per optimizer step over all processes: trajectories, or windows of those longer than `max_tokens`."""
    max_batch_tokens: int | None = None
    """Limit for the tokens of one forward pass, padding included, so that it fits into the device's memory. A step
    takes as many passes as it needs, with the same gradient; a longer row gets a pass of its own. None: one pass."""
    packing: bool | Literal["auto"] = "auto"
    """Concatenate trajectories in one row, without attention between them, instead of padding. "auto": if the attention
    kernel is faster with it."""
    warm_up: float = 0.1
    """Share of the steps in which the learning rate rises linearly; then it falls as a cosine."""
    max_grad_norm: float = 1.0
    weight_decay: float = 0.01
    lora_rank: int = 8
    lora_alpha: int = 16
    lora_targets: str | tuple[str, ...] = "all-linear"
    """Modules that get an adapter: PEFT's `target_modules`."""
    prompt_format: PromptFormat = PLAIN
    max_tokens: int | None = None
    """Limit for the tokens of a prompt; None: the base model's context."""
    objective: Objective = field(default_factory=Objective)
    """Target and loss."""
    best_of: int | None = None
    """G: train only on the best of each task's first G trajectories. None: on all."""
    policies: tuple[str, ...] | None = None
    """Train only on trajectories of these policies; for a dataset, which names them. None: on all."""
    validation_share: float = 0.2
    """Share of the tasks held out."""
    success: float = 1.0
    """The least return that counts as a success; for the metrics only."""
    shuffle_targets: bool = False
    """Control: permute targets among trajectories at the same step, so that nothing can be learnt."""
    evaluate_steps: int | None = None
    """Steps between evaluations of the held-out loss. None: after each epoch."""
    keep_best: bool = False
    """Keep the weights with the lowest held-out loss instead of the last ones."""
    early_stopping: int | None = None
    """Stop after this many evaluations in a row without a lower held-out loss. None: never."""
    calibration: Literal["none", "affine", "isotonic"] = "none"
    """Map from predicted to calibrated values, fitted on held-out tasks after training and saved with the model."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the base model, in training and in the saved folder."""
    device: str = "cpu"
    """Torch device: "cpu", "cuda", ..."""
    attention: str = "auto"
    """transformers' `attn_implementation`; "auto": transformers chooses."""
    gradient_checkpointing: bool = False
    """Keep only the layers' inputs for the backward pass and recompute the rest: less memory, a third more time."""
    quantize: Literal["4bit"] | None = None
    """QLoRA: hold the base model's linear layers in 4 bits (NF4, bitsandbytes)."""
    save_steps: int | None = None
    """Steps between checkpoints, from which an interrupted training resumes. None: after each epoch. A checkpoint is
    also saved at the end, and with `keep_best` or `early_stopping` after each evaluation."""
    report_to: tuple[str, ...] = ()
    """Integrations that transformers reports metrics to: "tensorboard", "mlflow", ..."""
    seed: int = 0
    """Seed of the adapter, the head, the split and the order of rows."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot be trained."""
        for name in ("epochs", "batch_size", "lora_rank"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}: expected at least 1")
        for name in ("max_batch_tokens", "best_of", "evaluate_steps", "early_stopping", "save_steps"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigurationError(f"{name} is {value}: expected at least 1, or None")
        self.objective.check_best_of(self.best_of)
        if self.calibration not in ("none", "affine", "isotonic"):
            raise ConfigurationError(
                f"calibration is {quoted(self.calibration)}: expected 'none', 'affine' or 'isotonic'"
            )


EMBEDDED = ValueTrainingSettings(learning_rate=3e-3, epochs=4, prompt_format=DIALOGUE)
"""Settings for the embedded model, which is small and needs a high learning rate."""

HARDWARE = frozenset(
    {"max_batch_tokens", "packing", "device", "attention", "gradient_checkpointing", "save_steps", "report_to"}
)
"""Settings that affect speed, memory and reports, but not the result. They may change when a training is resumed."""
