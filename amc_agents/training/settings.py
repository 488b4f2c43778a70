"""Settings of the trainings: of value models (AMC), verdict models (LAC) and goal critics (PNLC).

A setting with a help text is also an option of its command (`amc train ...`), with this default, type and text. This
module imports nothing heavy, because `amc --help` imports it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted

if TYPE_CHECKING:
    from amc_agents.critics.render import PromptFormat
    from amc_agents.critics.verdict.checkpoint import VerdictFormat

T = TypeVar("T")
OBJECTIVE, COURSE, HARDWARE_PANEL = "Objective and data", "Schedule and checkpoints", "Hardware"
"""Panels of `amc train value --help`."""


def setting(default: T, help: str, **option: Any) -> T:
    """Declare a field of a settings dataclass that is also an option of a command.

    Args:
        default: the field's default.
        help: the option's text. If it states a default, as in "Default: {default}.", the option has none of its own.
        **option: `names` or `panel` of the option, `min` or `max` of its value, or the `value` that a flag stands for.
    """
    declared: T = field(default=default, metadata={"help": help, **option})
    return declared


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

    loss: Literal["squared", "weighted", "bce"] = setting(
        "squared", '"bce": for returns of 0 and 1; "weighted": needs --beta.', panel=OBJECTIVE
    )
    """Squared error, squared error with exponential weights, or binary cross-entropy of a logit for returns 0 and 1."""
    target: Literal["future", "return"] = setting(
        "future",
        '"return": the whole return, also usable to pick without rewards; "future": the return to come.',
        panel=OBJECTIVE,
    )
    """G: "future" is G_t (eq. 7), "return" is R at every state."""
    beta: float | None = setting(None, "beta of --soft and of --loss weighted, in reward units.", panel=OBJECTIVE)
    """None for other objectives."""
    soft: bool = setting(False, "Targets of eq. 5, valid only for runs with the same --beta.", panel=OBJECTIVE)
    """They differ from those of eq. 7 only with several trajectories per task."""

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


def _plain() -> PromptFormat:
    from amc_agents.critics.render import PLAIN

    return PLAIN


@dataclass(frozen=True)
class ValueTrainingSettings:
    """Settings of a value model's training. The defaults are those of the paper's table 7, with a squared error."""

    learning_rate: float = setting(1e-5, "Peak learning rate. Default: depends on the base.")
    epochs: int = setting(3, "Passes over the data. Default: depends on the base.", min=1)
    batch_size: int = setting(16, "Trajectories per step, over all devices. Default: {default}.", min=1, panel=COURSE)
    """A trajectory longer than `max_tokens` counts once for each of its windows."""
    max_batch_tokens: int | None = setting(
        None, "Tokens of one forward pass, limited by memory. Default: no limit.", min=1, panel=HARDWARE_PANEL
    )
    """Padding included. A step takes as many passes as it needs, with the same gradient; a longer row gets a pass of
    its own."""
    packing: bool | Literal["auto"] = "auto"
    """Concatenate trajectories in one row, without attention between them, instead of padding. "auto": if the attention
    kernel is faster with it."""
    warm_up: float = 0.1
    """Share of the steps in which the learning rate rises linearly; then it falls as a cosine."""
    max_grad_norm: float = 1.0
    weight_decay: float = 0.01
    lora_rank: int = setting(8, "Rank of the LoRA adapter. Default: {default}.", min=1, panel=HARDWARE_PANEL)
    lora_alpha: int = 16
    """The adapter's output is scaled by alpha / rank."""
    lora_targets: str | tuple[str, ...] = "all-linear"
    """Modules that get an adapter, in PEFT's terms: "all-linear", names, or a regular expression."""
    prompt_format: PromptFormat = field(default_factory=_plain)
    max_tokens: int | None = setting(
        None, "Maximum tokens of a prompt. Default: the base's context.", min=1, panel=HARDWARE_PANEL
    )
    objective: Objective = field(default_factory=Objective)
    """Target and loss."""
    best_of: int | None = setting(
        None, "Train only on the best of each task's first G trajectories.", min=1, panel=OBJECTIVE
    )
    policies: tuple[str, ...] | None = setting(
        None, "Train only on trajectories of this policy; repeatable.", names="--policy", panel=OBJECTIVE
    )
    """For a dataset, which names the policies."""
    validation_share: float = setting(0.2, "Share of tasks held out. Default: {default}.", panel=COURSE)
    success: float = 1.0
    """The least return that counts as a success; for the metrics only."""
    shuffle_targets: bool = setting(False, "Control experiment: train on shuffled targets.", panel=OBJECTIVE)
    """Targets are permuted among trajectories at the same step, so that nothing can be learnt."""
    evaluate_steps: int | None = setting(
        None, "Steps between evaluations on held-out tasks. Default: an epoch.", min=1, panel=COURSE
    )
    keep_best: bool = setting(False, "Keep the checkpoint with the lowest held-out loss.", panel=COURSE)
    early_stopping: int | None = setting(
        None, "Stop after this many evaluations without improvement.", min=1, panel=COURSE
    )
    calibration: Literal["none", "affine", "isotonic"] = setting(
        "none", "Fitted on held-out tasks after training.", panel=OBJECTIVE
    )
    """Map from predicted to calibrated values, saved with the model."""
    dtype: Literal["float32", "bfloat16"] = setting(
        "float32", "Number type of base model and result.", panel=HARDWARE_PANEL
    )
    """Adapter and head train in float32."""
    device: str = setting("cpu", '"cpu", "cuda", ...', panel=HARDWARE_PANEL)
    """Torch device; "cuda" under torchrun is the device of the process."""
    attention: str = setting("auto", "transformers' attn_implementation.", panel=HARDWARE_PANEL)
    """"auto": transformers chooses (SDPA if the model supports it)."""
    gradient_checkpointing: bool = setting(False, "Use less memory and a third more time.", panel=HARDWARE_PANEL)
    """Keep only the layers' inputs for the backward pass and recompute the rest."""
    quantize: Literal["4bit"] | None = setting(
        None, "Load the base model in 4 bits (bitsandbytes).", names="--qlora", value="4bit", panel=HARDWARE_PANEL
    )
    """QLoRA: hold the base model's linear layers in NF4."""
    save_steps: int | None = setting(
        None, "Steps between checkpoints to resume from. Default: an epoch.", min=1, panel=COURSE
    )
    """A checkpoint is also saved at the end, and with `keep_best` or `early_stopping` after each evaluation."""
    report_to: tuple[str, ...] = setting(
        (), "Trackers that transformers reports to: tensorboard, mlflow, ...", panel=COURSE
    )
    seed: int = setting(0, "Seed of initial weights, split and order.", min=0)

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


HARDWARE = frozenset(
    {"max_batch_tokens", "packing", "device", "attention", "gradient_checkpointing", "save_steps", "report_to"}
)
"""Settings that affect speed, memory and reports, but not the result. They may change when a training is resumed."""


def _step() -> VerdictFormat:
    from amc_agents.critics.verdict.checkpoint import STEP

    return STEP


@dataclass(frozen=True)
class VerdictTrainingSettings:
    """Settings of a verdict critic's training. The defaults are the paper's, for large models."""

    learning_rate: float = setting(2.5e-5, "Peak learning rate. Default: depends on the base.")
    epochs: int = setting(3, "Passes over the data. Default: depends on the base.", min=1)
    batch_size: int = 2
    """Rows per batch: trajectories with their candidates."""
    warm_up: float = 0.1
    """Share of the steps that warm up; then cosine decay."""
    max_grad_norm: float = 1.0
    weight_decay: float = 0.01
    optimizer: Literal["adamw", "muon"] = "adamw"
    """Muon learns faster for small models with large learning rates."""
    lora_rank: int | None = 8
    """None: train the full matrices and save the change as an adapter of full rank."""
    lora_alpha: int = 16
    prompt_format: VerdictFormat = field(default_factory=_step)
    words: tuple[str, str, str] = ("GOOD", "BAD", "UNKNOWN")
    """Words of the verdicts GOOD, BAD and UNKNOWN."""
    max_tokens: int | None = None
    """Maximum tokens of a prompt; None: the base model's context."""
    disagreement: float = 2.0
    """Weight of a verdict in a state whose candidates disagree; elsewhere it is 1."""
    observed: float = 0.25
    """Weight of the verdict after a step's observation, which is used for imagined steps and whole attempts."""
    observation_weight: float = 0.1
    """Weight of the forward model's loss, the mean over observed tokens, relative to the loss of verdicts."""
    validation_share: float = 0.2
    """Share of tasks held out."""
    keep_best: bool = True
    """Keep the epoch with the lowest validation loss instead of the last epoch."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number type of the base model and of the saved model."""
    device: str = setting("cpu", '"cpu", "cuda", ...')
    seed: int = setting(0, "Seed of candidates, initial weights, split and order.", min=0)

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.epochs < 1 or self.batch_size < 1:
            raise ConfigurationError(f"epochs {self.epochs} and batch_size {self.batch_size} must be at least 1")
        if min(self.disagreement, self.observed, self.observation_weight) < 0:
            raise ConfigurationError("the weights disagreement, observed and observation_weight must not be negative")


@dataclass(frozen=True)
class GoalShares:
    """Shares of the goals of a batch by source; normalised to sum to 1."""

    future: float = setting(0.5, "Share of goals from the same trajectory's future.")
    """The distance is geometric with the discount."""
    random: float = setting(0.4, "Share of goals from other trajectories.")
    """Most cannot be reached, which the critic must learn too."""
    current: float = setting(0.1, "Share of goals that are the state itself.")
    """They train only V(g, g) = 1."""

    def __post_init__(self) -> None:
        """Refuse shares with which goals are always, or never, reached."""
        if not (self.future > 0 and self.random > 0 and self.current >= 0):
            raise ConfigurationError(
                f"goal shares are future {self.future}, random {self.random}, current {self.current}: the first two "
                "must be above 0, otherwise goals are never, or always, reached in the data"
            )


@dataclass(frozen=True)
class GoalTrainingSettings:
    """Settings of a goal critic's training. The defaults are those of the paper's appendix A.2."""

    hidden: int = setting(64, "Width of the two hidden layers.", min=1)
    expectile: float = setting(0.8, "tau: above 0.5, V leans towards the best thoughts.")
    discount: float = setting(0.99, "gamma: discount per step to the goal.")
    learning_rate: float = setting(4e-4, "Learning rate of AdamW.")
    weight_decay: float = 0.01
    batch_size: int = setting(32, "Transitions per update.", min=1)
    iterations: int = setting(100, "Iterations of 50 updates.", min=1)
    updates: int = 50
    """Updates per iteration; losses and progress are reported after each iteration."""
    target_rate: float = 0.005
    """Polyak rate: how far the target network moves towards Q at each update."""
    nearness: bool = setting(
        True, "Add the similarity of state and goal, and of thought and goal, as features (not in the paper)."
    )
    """The features are inner products. A small network does not learn similarity from embeddings (docs: training)."""
    twin: bool = setting(False, "Train two Q networks and use the smaller output.")
    shares: GoalShares = field(default_factory=GoalShares)
    """Shares of goals by source."""
    validation_share: float = 0.2
    """Share of tasks held out."""
    calibrate: bool = setting(True, "Calibrate Q to a probability on held-out tasks, with goals of other trajectories.")
    device: str = setting("cpu", '"cpu", "cuda", ...')
    seed: int = setting(0, "Seed of initial weights, split and goals.", min=0)

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 0.0 < self.expectile < 1.0 or not 0.0 <= self.discount < 1.0 or not 0.0 < self.target_rate <= 1.0:
            raise ConfigurationError(
                f"expectile {self.expectile} must be between 0 and 1, discount {self.discount} in [0, 1), target_rate "
                f"{self.target_rate} in (0, 1]"
            )
        if min(self.hidden, self.batch_size, self.iterations, self.updates) < 1:
            raise ConfigurationError("hidden, batch_size, iterations and updates must be at least 1")
