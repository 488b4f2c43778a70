"""Trains a value model: LoRA regression of the return still to come (papers: AMC, eq. 7 and table 7).

All states of a trajectory are scored in ONE forward pass: prompts are append-only and attention is causal, so the
score at each state's marker is the score of that prefix alone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from amc_agents.critics.checkpoint import ValueCheckpoint, weights_hash
from amc_agents.critics.render import DIALOGUE, PLAIN, Encoder, PromptFormat
from amc_agents.errors import ConfigurationError, MissingExtra
from amc_agents.training.dataset import data_hash
from amc_agents.training.value_data import TargetRow, batches, shuffled_targets, split_by_task, target_rows
from amc_agents.training.value_golden import golden_prompts, golden_scores, scores_without_adapter
from amc_agents.training.value_metrics import evaluate
from amc_agents.types import FloatArray, Trajectory

try:
    import torch
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
    from safetensors.torch import save_file
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from transformers.utils import logging
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


@dataclass(frozen=True)
class ValueTrainingSettings:
    """How a value model is trained. Defaults: the paper's table 7, with a plain squared error."""

    learning_rate: float = 1e-5
    epochs: int = 3
    batch_size: int = 16
    """Rows of a batch: trajectories, or windows of those that outgrow `max_tokens`."""
    warm_up: float = 0.1
    """Share of the steps in which the learning rate rises; then it falls as a cosine."""
    max_grad_norm: float = 1.0
    weight_decay: float = 0.01
    lora_rank: int = 8
    lora_alpha: int = 16
    prompt_format: PromptFormat = PLAIN
    max_tokens: int | None = None
    """The most tokens of a prompt; None: the base model's context."""
    target: Literal["future", "return"] = "future"
    """The return still to come (eq. 7), or the whole return at every state."""
    validation_share: float = 0.2
    """Share of the tasks held out."""
    success: float = 1.0
    """The least return that counts as a success, in the metrics alone."""
    shuffle_targets: bool = False
    """The control: train on targets of other trajectories (same step); nothing should be learnt."""
    keep_best: bool = False
    """Keep the epoch with the least validation loss, instead of the last."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number type of the base model, in training and in the saved folder."""
    device: str = "cpu"
    """Where torch computes: "cpu", "cuda", ..."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        if self.epochs < 1 or self.batch_size < 1:
            raise ConfigurationError(f"epochs {self.epochs} and batch_size {self.batch_size} must be at least 1")


EMBEDDED = ValueTrainingSettings(learning_rate=3e-3, epochs=4, prompt_format=DIALOGUE)
"""What the embedded model is trained with: it is small, and takes large steps."""


class Progress(NamedTuple):
    """What a progress callback gets after each step."""

    step: int
    steps: int
    epoch: int
    loss: float


def train_value(
    base_model: str | Path,
    trajectories: Sequence[Trajectory],
    out: str | Path,
    settings: ValueTrainingSettings | None = None,
    *,
    progress: Callable[[Progress], None] | None = None,
) -> ValueCheckpoint:
    """Trains a value model and saves it.

    `out` becomes the folder of an `AutoModelForSequenceClassification` (LoRA merged; `hf:out` and vLLM load it), with
    `amc_value.json` (format, golden scores, settings, metrics) and `adapter/` (LoRA and head, float16).

    Args:
        base_model: folder of a causal language model and its tokenizer.
        trajectories: finished ones, of at least two tasks.
        out: where to write; made if need be.
        settings: None: the paper's.
        progress: called after each step.

    Returns:
        What was written to `amc_value.json`; its `metrics` are of held-out tasks.
    """
    settings = settings or ValueTrainingSettings()
    rng = np.random.default_rng(settings.seed)
    tokenizer = AutoTokenizer.from_pretrained(str(base_model))
    model = _with_adapter(base_model, tokenizer, settings)
    encoder = make_encoder(tokenizer, settings.prompt_format, settings.max_tokens or _context(model))
    training, validation = split_by_task(trajectories, settings.validation_share, rng)
    options: dict[str, Any] = {"target": settings.target, "success": settings.success}
    train_rows, rows = target_rows(training, encoder, **options), target_rows(validation, encoder, **options)
    if settings.shuffle_targets:
        train_rows = shuffled_targets(train_rows, rng)

    history = _fit(model, train_rows, rows, settings, rng, progress)
    # The adapter is kept in half precision; what is measured and merged is what is kept.
    _round_to_half(model)
    metrics = evaluate(rows, row_values(model, rows, settings.batch_size)) | {"epochs": history}

    out = Path(out)
    _save_adapter(model, out / "adapter")
    prompts = golden_prompts(encoder, validation)
    without_adapter = scores_without_adapter(model, prompts)
    with _quiet():
        merged = model.merge_and_unload()
        merged.save_pretrained(out)
        tokenizer.save_pretrained(out)
    found = golden_scores(merged, prompts, without_adapter, encoder)
    checkpoint = ValueCheckpoint(
        prompt_format=settings.prompt_format,
        max_tokens=encoder.max_tokens,
        prefix_ids=encoder.prefix_ids,
        golden=found.golden,
        probe_scores=found.probe_scores,
        tolerance=1e-4 if settings.dtype == "float32" else 3e-2,
        target=settings.target,
        base_model_hash=weights_hash(base_model),
        data_hash=data_hash(trajectories),
        settings=asdict(settings),
        metrics=metrics,
    )
    checkpoint.save(out)
    return checkpoint


def make_encoder(tokenizer: Any, prompt_format: PromptFormat, max_tokens: int | None) -> Encoder:
    """An encoder over a transformers tokenizer; a beginning-of-text token goes first where the tokenizer has one."""
    bos = [tokenizer.bos_token_id]
    prefix_ids = bos if tokenizer("")["input_ids"] == bos else []

    def tokenize(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    return Encoder(prompt_format, tokenize, max_tokens, prefix_ids)


def scores_at_marks(model: Any, rows: Sequence[TargetRow]) -> tuple[torch.Tensor, torch.Tensor]:
    """One forward pass over padded rows.

    Returns:
        `[S]` scores at all marks of all rows, in order, and `[S]` their targets (float32).
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    device = base.device
    length = max(len(row.ids) for row in rows)
    ids = torch.full((len(rows), length), base.config.pad_token_id, dtype=torch.long)
    attend = torch.zeros((len(rows), length), dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, : len(row.ids)] = torch.tensor(row.ids)
        attend[index, : len(row.ids)] = 1
    transformer = getattr(base, base.base_model_prefix)
    hidden = transformer(input_ids=ids.to(device), attention_mask=attend.to(device), use_cache=False).last_hidden_state
    where = torch.tensor([index for index, row in enumerate(rows) for _ in row.marks], device=device)
    marks = torch.tensor([mark for row in rows for mark in row.marks], device=device)
    targets = torch.tensor([target for row in rows for target in row.targets], device=device)
    return base.score(hidden[where, marks]).squeeze(-1).float(), targets


def row_values(model: Any, rows: Sequence[TargetRow], batch_size: int = 16) -> list[FloatArray]:
    """The values at the marks of each row, `[S]` each, in the order of the rows."""
    order = sorted(range(len(rows)), key=lambda index: len(rows[index].ids))
    found: dict[int, FloatArray] = {}
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            scores, _ = scores_at_marks(model, [rows[index] for index in chosen])
            parts = torch.split(scores.cpu(), [len(rows[index].marks) for index in chosen])
            found |= {index: part.double().numpy() for index, part in zip(chosen, parts, strict=True)}
    model.train(was_training)
    return [found[index] for index in range(len(rows))]


def _fit(
    model: Any,
    train_rows: Sequence[TargetRow],
    validation_rows: Sequence[TargetRow],
    settings: ValueTrainingSettings,
    rng: np.random.Generator,
    progress: Callable[[Progress], None] | None,
) -> list[dict[str, float]]:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    steps = settings.epochs * math.ceil(len(train_rows) / settings.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps, settings.warm_up))
    history: list[dict[str, float]] = []
    best: tuple[float, list[torch.Tensor]] | None = None
    step = 0
    model.train()
    for epoch in range(1, settings.epochs + 1):
        losses: list[float] = []
        for batch in batches(train_rows, settings.batch_size, rng):
            scores, targets = scores_at_marks(model, batch)
            loss = torch.nn.functional.mse_loss(scores, targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm)
            optimizer.step()
            schedule.step()
            step += 1
            losses.append(float(loss.detach()))
            if progress is not None:
                progress(Progress(step, steps, epoch, losses[-1]))
        held_out = evaluate(validation_rows, row_values(model, validation_rows, settings.batch_size))["loss"]
        history.append({"epoch": epoch, "train_loss": float(np.mean(losses)), "validation_loss": held_out})
        if settings.keep_best and (best is None or held_out < best[0]):
            best = held_out, [parameter.detach().clone() for parameter in parameters]
    if best is not None:
        with torch.no_grad():
            for parameter, kept in zip(parameters, best[1], strict=True):
                parameter.copy_(kept)
    model.eval()
    return history


def _rate(step: int, steps: int, warm_up: float) -> float:
    rising = max(1, round(warm_up * steps))
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def _with_adapter(base_model: str | Path, tokenizer: Any, settings: ValueTrainingSettings) -> Any:
    # The head and the adapter are drawn from torch's global generator: seed it, and leave it as it was.
    with torch.random.fork_rng(devices=[]), _quiet():
        torch.manual_seed(settings.seed)
        model: Any = AutoModelForSequenceClassification.from_pretrained(
            str(base_model), num_labels=1, dtype=getattr(torch, settings.dtype)
        )
        if not hasattr(model, "score") or not model.base_model_prefix:
            raise ConfigurationError(
                f"{type(model).__name__} has no `score` head over a causal transformer: use a decoder-only base model"
            )
        model.config.pad_token_id = _pad_token(tokenizer)
        adapter = LoraConfig(
            task_type="SEQ_CLS", r=settings.lora_rank, lora_alpha=settings.lora_alpha, target_modules="all-linear"
        )
        wrapped = get_peft_model(model, adapter)
    return wrapped.to(settings.device)


def _pad_token(tokenizer: Any) -> int:
    token = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    if token is None:
        raise ConfigurationError("the tokenizer has neither a pad nor an end token: last-token pooling needs one")
    return int(token)


def _context(model: Any) -> int | None:
    limit = getattr(model.config, "max_position_embeddings", None)
    return None if limit is None else int(limit)


def _round_to_half(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(parameter.half().to(parameter.dtype))


def _save_adapter(model: Any, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.half().cpu().contiguous() for name, tensor in get_peft_model_state_dict(model).items()}
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    model.peft_config["default"].save_pretrained(str(folder))


@contextmanager
def _quiet() -> Iterator[None]:
    # transformers reports the new head as if it were a mistake, and peft uses what transformers deprecates.
    reports: Any = logging
    verbosity, bars = reports.get_verbosity(), reports.is_progress_bar_enabled()
    reports.set_verbosity_error()
    reports.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        reports.set_verbosity(verbosity)
        if bars:
            reports.enable_progress_bar()
