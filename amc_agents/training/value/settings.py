"""Settings of a value model's training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from amc_agents.critics.render import DIALOGUE, PLAIN, PromptFormat
from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.training.value.objective import Objective


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
