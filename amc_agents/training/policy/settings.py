"""Settings of a policy's training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from amc_agents.errors import ConfigurationError


@dataclass(frozen=True)
class DistillSettings:
    """Settings of a policy's training on what a search found."""

    beta: float = 0.1
    """Independent trajectories of a task are weighted by exp(R / beta), in reward units. What a search drew by its
    weights counts equally."""
    success: float = 1.0
    """Tasks without a return of at least this are left out: there is nothing to imitate."""
    system: str | None = None
    """System message that the policy reads before the instruction. None: it reads none."""
    learning_rate: float = 1e-5
    epochs: int = 3
    batch_size: int = 12
    """Trajectories per step."""
    warm_up: float = 0.1
    """Share of the steps that warm up; then cosine decay."""
    max_grad_norm: float = 1.0
    weight_decay: float = 0.0
    lora_rank: int | None = 8
    """None: train all weights."""
    lora_alpha: int = 16
    max_tokens: int | None = None
    """Longer trajectories are left out. None: the model's context."""
    validation_share: float = 0.2
    """Share of tasks held out."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the model, in training and in the saved folder."""
    device: str = "cpu"
    """Torch device: "cpu", "cuda", ..."""
    save_steps: int | None = None
    """Steps between checkpoints, from which an interrupted training resumes. None: after each epoch."""
    seed: int = 0
    """Seed of the adapter, the split and the order of rows."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot be trained."""
        for name in ("epochs", "batch_size", "lora_rank", "save_steps"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigurationError(f"{name} is {value}: expected at least 1")
        if self.beta <= 0:
            raise ConfigurationError(f"beta is {self.beta:g}: expected a number above 0, in reward units")


EMBEDDED = DistillSettings(learning_rate=3e-4, lora_rank=None)
"""Settings for the embedded model, which is small and is trained whole."""
