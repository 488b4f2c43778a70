"""How a value model is trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from amc_agents.critics.render import DIALOGUE, PLAIN, PromptFormat
from amc_agents.errors import ConfigurationError
from amc_agents.training.value.objective import Objective


@dataclass(frozen=True)
class ValueTrainingSettings:
    """How a value model is trained. Defaults: the paper's table 7, with a plain squared error."""

    learning_rate: float = 1e-5
    epochs: int = 3
    batch_size: int = 16
    """Rows of an optimizer step, over all processes: trajectories, or windows of those that outgrow `max_tokens`."""
    max_batch_tokens: int | None = None
    """The most tokens of one forward pass, padding included: what fits into a device's memory. A step takes as many
    passes as that needs, with the same gradient; a longer row is a pass of its own. None: one pass each step."""
    packing: bool | Literal["auto"] = "auto"
    """Trajectories one after the other in one row, none seeing another, instead of padding. "auto": where the attention
    kernel gains by it."""
    warm_up: float = 0.1
    """Share of the steps in which the learning rate rises; then it falls as a cosine."""
    max_grad_norm: float = 1.0
    weight_decay: float = 0.01
    lora_rank: int = 8
    lora_alpha: int = 16
    lora_targets: str | tuple[str, ...] = "all-linear"
    """Modules that get an adapter, as PEFT names them."""
    prompt_format: PromptFormat = PLAIN
    max_tokens: int | None = None
    """The most tokens of a prompt; None: the base model's context."""
    objective: Objective = field(default_factory=Objective)
    """What is predicted, and by which loss."""
    best_of: int | None = None
    """G: train on the best of each task's first G trajectories alone. None: on all."""
    policies: tuple[str, ...] | None = None
    """Train on the trajectories of these policies alone (of a dataset that says who made what). None: on all."""
    validation_share: float = 0.2
    """Share of the tasks held out."""
    success: float = 1.0
    """The least return that counts as a success, in the metrics alone."""
    shuffle_targets: bool = False
    """The control: train on targets of other trajectories (same step); nothing should be learnt."""
    evaluate_steps: int | None = None
    """Steps between two looks at the held-out loss; None: at the end of each epoch."""
    keep_best: bool = False
    """Keep what had the least held-out loss, instead of the last."""
    early_stopping: int | None = None
    """Stop after so many looks in a row without a smaller held-out loss. None: never."""
    calibration: Literal["none", "affine", "isotonic"] = "none"
    """Fitted to held-out tasks after training, and kept with the model."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number type of the base model, in training and in the saved folder."""
    device: str = "cpu"
    """Where torch computes: "cpu", "cuda", ..."""
    attention: str = "auto"
    """transformers' `attn_implementation`; "auto": its choice."""
    gradient_checkpointing: bool = False
    """Keep only the layers' inputs for the backward pass and compute the rest again: less memory, a third more time."""
    quantize: Literal["4bit"] | None = None
    """QLoRA: the base model's linear layers in 4 bits (NF4, bitsandbytes)."""
    save_steps: int | None = None
    """Steps between checkpoints, from which an interrupted training resumes. None: after each epoch. A checkpoint is
    also saved at the end, and with `keep_best` or `early_stopping` after each evaluation."""
    report_to: tuple[str, ...] = ()
    """Where transformers reports metrics: "tensorboard", "mlflow", ..."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        for name in ("epochs", "batch_size", "lora_rank"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}: expected at least 1")
        for name in ("max_batch_tokens", "best_of", "evaluate_steps", "early_stopping", "save_steps"):
            if (given := getattr(self, name)) is not None and given < 1:
                raise ConfigurationError(f"{name} is {given}: expected at least 1, or None")
        self.objective.check_best_of(self.best_of)
        if self.calibration not in ("none", "affine", "isotonic"):
            raise ConfigurationError(f"calibration is {self.calibration!r}: expected 'none', 'affine' or 'isotonic'")


EMBEDDED = ValueTrainingSettings(learning_rate=3e-3, epochs=4, prompt_format=DIALOGUE)
"""What the embedded model is trained with: it is small, and takes large steps."""

HARDWARE = frozenset(
    {"max_batch_tokens", "packing", "device", "attention", "gradient_checkpointing", "save_steps", "report_to"}
)
"""Settings that decide how fast a training is and what it tells, and not what comes of it: an interrupted one may go on
with others."""
