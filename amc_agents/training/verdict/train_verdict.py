"""Train a verdict critic by next-token fine-tuning on the words of verdicts (LAC, B.2).

The same model is critic, forward model and writer of reflections: it learns the verdicts of steps and of candidates
(`verdict.labelling`), and the observations, including reflections if observations contain them. A forward pass reads
all verdicts of a trajectory.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from amc_agents.critics.saved import Golden
from amc_agents.critics.value.checkpoint import weights_hash
from amc_agents.critics.verdict.checkpoint import DIALOGUE_STEP, VerdictCheckpoint, Words
from amc_agents.critics.verdict.reading import Spellings
from amc_agents.errors import ConfigurationError, MissingExtra
from amc_agents.files import sole_writer
from amc_agents.quoting import quoted
from amc_agents.training.data_checks import check_words, split_by_task, task_of_trajectory
from amc_agents.training.dataset import data_hash
from amc_agents.training.fine_tuning import (
    context,
    make_encoder,
    pad_token,
    quiet,
    round_to_half,
    save_adapter,
    warm_up_and_cosine,
)
from amc_agents.training.settings import VerdictTrainingSettings
from amc_agents.training.training_state import weights_written
from amc_agents.training.value.batches import random_batches
from amc_agents.training.verdict.labelling import LABELS, Judged, Label
from amc_agents.training.verdict.passes import Branch, RowBuilder, VerdictRow, branches, log_odds, losses, predict
from amc_agents.training.verdict.picking import evaluate

try:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


EMBEDDED = VerdictTrainingSettings(
    learning_rate=3e-3,
    epochs=4,
    batch_size=8,
    prompt_format=DIALOGUE_STEP,
    words=("Crafted", "Could not find", "Inventory:"),
)
"""Settings for the embedded model. Its vocabulary is fixed, so its verdicts are words that it knows."""


class VerdictTrainingProgress(NamedTuple):
    """Progress of a training, reported after each step."""

    step: int
    steps: int
    epoch: int
    loss: float


def train_verdict(
    base_model: str | Path,
    judged: Sequence[Judged],
    out: str | Path,
    settings: VerdictTrainingSettings | None = None,
    *,
    progress: Callable[[VerdictTrainingProgress], None] | None = None,
) -> VerdictCheckpoint:
    """Train a verdict critic and save it, atomically.

    `out` becomes the folder of an `AutoModelForCausalLM` (LoRA merged; vLLM serves it for `verdict:http://...`), with
    `amc_verdict.json` (format, words, golden log-odds, settings, metrics) and `adapter/` (LoRA, float16).

    Args:
        base_model: folder of a causal language model and its tokenizer.
        judged: labelled trajectories of at least two tasks; see `verdict.data.labelled`.
        out: folder to write; must not exist, or be empty.
        settings: settings of the training; None: the paper's.
        progress: called after each step.

    Returns:
        The contents of `amc_verdict.json`; its `metrics` are those of held-out tasks.

    Raises:
        ConfigurationError: `out` is not empty or another process writes it, the words cannot be distinguished or are
            unknown to the model, the tokenizer does not know the data's words, or no label is GOOD or none is BAD.
        StorageError: the result cannot be written.
    """
    with sole_writer(Path(out)):
        return _train_verdict(base_model, judged, Path(out), settings or VerdictTrainingSettings(), progress)


def _train_verdict(
    base_model: str | Path,
    judged: Sequence[Judged],
    out: Path,
    settings: VerdictTrainingSettings,
    progress: Callable[[VerdictTrainingProgress], None] | None,
) -> VerdictCheckpoint:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"{out} is not empty: choose another folder, or remove it first")
    rng = np.random.default_rng(settings.seed)
    tokenizer = AutoTokenizer.from_pretrained(str(base_model), trust_remote_code=False)
    model = _causal(base_model, settings)
    model.config.pad_token_id = pad_token(tokenizer, model)
    builder = _builder(tokenizer, settings, context(model))
    _check_words(model, builder, settings.words)
    check_words((play.trajectory for play in judged), builder.encoder)
    training, validation = split_by_task(judged, settings.validation_share, rng, task_of=task_of_trajectory)
    _check_labels(training)
    rows, held_out = (_rows(builder, part, settings) for part in (training, validation))

    if settings.lora_rank is None:
        before = train_matrices(model)
        history = _fit(model, rows, held_out, settings, rng, progress)
        model = change_as_adapter(model, before)
    else:
        model = _with_adapter(model, settings.lora_rank, settings)
        history = _fit(model, rows, held_out, settings, rng, progress)
    # The adapter is saved in half precision: round before measuring and merging.
    round_to_half(model)
    predictions = predict(model, held_out, builder, settings.batch_size)
    metrics = evaluate(validation, held_out, predictions) | {"epochs": history}

    out.parent.mkdir(parents=True, exist_ok=True)
    with (
        weights_written(out.parent),
        _unfinished(out) as folder,
        quiet(),
    ):
        save_adapter(model, folder / "adapter")
        merged = model.merge_and_unload()
        merged.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        checkpoint = VerdictCheckpoint(
            prompt_format=settings.prompt_format,
            words=settings.words[:2],
            max_tokens=builder.encoder.max_tokens,
            prefix_ids=builder.encoder.prefix_ids,
            golden=_golden(merged, builder, validation, settings.words[:2]),
            tolerance=1e-3 if settings.dtype == "float32" else 0.1,
            base_model_hash=weights_hash(base_model),
            data_hash=data_hash([play.trajectory for play in judged]),
            settings=json.loads(json.dumps(asdict(settings))),
            metrics=metrics,
        )
        checkpoint.save(folder)
        if out.exists():
            out.rmdir()
        folder.rename(out)
    return checkpoint


@contextmanager
def _unfinished(out: Path) -> Iterator[Path]:
    """Give the hidden folder in which the result is written. What a killed training left there is removed."""
    folder = out.parent / f".{out.name}.unfinished"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fit(
    model: Any,
    rows: Sequence[VerdictRow],
    held_out: Sequence[VerdictRow],
    settings: VerdictTrainingSettings,
    rng: np.random.Generator,
    progress: Callable[[VerdictTrainingProgress], None] | None,
) -> list[dict[str, float]]:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    options: dict[str, Any] = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
    optimizer: Any
    if settings.optimizer == "muon":
        optimizer = torch.optim.Muon(parameters, adjust_lr_fn="match_rms_adamw", **options)
    else:
        optimizer = torch.optim.AdamW(parameters, **options)
    steps = settings.epochs * math.ceil(len(rows) / settings.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: warm_up_and_cosine(step, steps, settings.warm_up)
    )
    lengths = np.array([len(row.ids) for row in rows])
    history: list[dict[str, float]] = []
    best: tuple[float, list[torch.Tensor]] | None = None
    step = 0
    model.train()
    for epoch in range(1, settings.epochs + 1):
        epoch_losses: list[float] = []
        for chosen in random_batches(rng, lengths, settings.batch_size):
            batch = [rows[index] for index in chosen]
            verdicts, observations = losses(model, batch)
            loss = verdicts + settings.observation_weight * observations
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm)
            optimizer.step()
            schedule.step()
            step += 1
            epoch_losses.append(float(verdicts.detach()))
            if progress is not None:
                progress(VerdictTrainingProgress(step, steps, epoch, epoch_losses[-1]))
        validation = _validation_loss(model, held_out, settings.batch_size)
        history.append({"epoch": epoch, "train_loss": float(np.mean(epoch_losses)), "validation_loss": validation})
        if settings.keep_best and (best is None or validation < best[0]):
            best = validation, [parameter.detach().clone() for parameter in parameters]
    if best is not None:
        with torch.no_grad():
            for parameter, kept in zip(parameters, best[1], strict=True):
                parameter.copy_(kept)
    model.eval()
    return history


def _validation_loss(model: Any, rows: Sequence[VerdictRow], batch_size: int) -> float:
    model.eval()
    total = weights = 0.0
    order = sorted(range(len(rows)), key=lambda index: len(rows[index].ids))
    with torch.no_grad():
        for start in range(0, len(order), batch_size):
            batch = [rows[index] for index in order[start : start + batch_size]]
            weight = sum(branch.weight for row in batch for branch in row.branches)
            total += float(losses(model, batch)[0]) * weight
            weights += weight
    model.train()
    return total / weights


def _rows(builder: RowBuilder, judged: Sequence[Judged], settings: VerdictTrainingSettings) -> list[VerdictRow]:
    return [
        row
        for play in judged
        for row in builder.rows(
            play.trajectory, branches(play, disagreement=settings.disagreement, observed=settings.observed)
        )
    ]


def _builder(tokenizer: Any, settings: VerdictTrainingSettings, context: int | None) -> RowBuilder:
    encoder = make_encoder(tokenizer, settings.prompt_format.rounds, settings.max_tokens or context)
    tokenize = encoder.tokenize
    good, bad, unknown = settings.words
    spellings = Spellings.of((good, bad), tokenize)
    # If the question ends in a word, the verdict is spelled with a leading space.
    spaced = settings.prompt_format.question[-1:].isalnum()
    words: dict[Label, tuple[int, ...]] = {
        "GOOD": spellings.good[-1 if spaced else 0],
        "BAD": spellings.bad[-1 if spaced else 0],
        "UNKNOWN": Spellings.of((unknown, good), tokenize).good[-1 if spaced else 0],
    }
    return RowBuilder(settings.prompt_format, encoder, tokenize, words)


def _causal(base_model: str | Path, settings: VerdictTrainingSettings) -> Any:
    with quiet():
        model: Any = AutoModelForCausalLM.from_pretrained(
            str(base_model), dtype=getattr(torch, settings.dtype), trust_remote_code=False
        )
    return model.to(settings.device)


def _with_adapter(model: Any, rank: int, settings: VerdictTrainingSettings) -> Any:
    # The adapter is initialised by torch's global generator: seed it, then restore its state.
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(settings.seed)
        adapter = LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=settings.lora_alpha, target_modules="all-linear")
        wrapped: Any = get_peft_model(model, adapter)
    return wrapped


def _check_labels(judged: Sequence[Judged]) -> None:
    counts = {label: 0 for label in LABELS}
    for play in judged:
        for label in (*play.labels, *(option.label for state in play.options for option in state)):
            counts[label] += 1
    if not counts["GOOD"] or not counts["BAD"]:
        raise ConfigurationError(f"a verdict critic needs both GOOD and BAD labels, got {counts}: use another labeller")


def _check_words(model: Any, builder: RowBuilder, words: Sequence[str]) -> None:
    """Check that the model can learn the words: tokens that it never saw in training share the same embedding."""
    embeddings = torch.nn.functional.normalize(model.get_output_embeddings().weight.detach().float(), dim=1)
    labels: tuple[Label, ...] = ("GOOD", "BAD")
    for word, label in zip(words, labels, strict=False):
        token = builder.spellings[label][0]
        similarity = embeddings @ embeddings[token]
        similarity[token] = 0.0
        if float(similarity.max()) > _SAME:
            twins = int((similarity > _SAME).sum())
            raise ConfigurationError(
                f"the model cannot learn the word {quoted(word)} for {label}: its first token has the same embedding "
                f"as {twins} others, like tokens never seen in training. Choose words that the model knows (`words=`)"
            )


def _golden(merged: Any, builder: RowBuilder, judged: Sequence[Judged], words: Words) -> tuple[Golden, ...]:
    """Make a prompt of each of a few trajectories, alternating before and after the observation."""
    golden = []
    for number, index in enumerate(np.linspace(0, len(judged) - 1, _GOLDEN).round().astype(int)):
        play = judged[index]
        t = round((len(play.labels) - 1) * number / (_GOLDEN - 1))
        candidates = branches(play, observed=float(number % 2))
        branch: Branch = next(b for b in reversed(candidates) if b.state == t)
        texts, ids = builder.prompt(play.trajectory, branch)
        golden.append(Golden(texts, ids, log_odds(merged, ids, words, builder.tokenize)))
    return tuple(golden)


_SAME = 0.999
"""Cosine above which two tokens' embeddings count as the same."""
_GOLDEN = 5
"""Number of golden prompts of a checkpoint."""


Weights = dict[str, torch.Tensor]
"""Name of a linear layer -> its weights."""


def train_matrices(model: Any) -> Weights:
    """Make only the matrices of the linear layers trainable, without the output layer.

    Args:
        model: a causal language model.

    Returns:
        Copies of the current matrices.
    """
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    before = {}
    for name, layer in _layers(model).items():
        layer.weight.requires_grad_(True)
        before[name] = layer.weight.detach().clone()
    return before


def change_as_adapter(model: Any, before: Weights) -> Any:
    """Restore the original weights and move the change into an adapter.

    Args:
        model: a causal language model with trained matrices; its own weights are restored.
        before: the return value of `train_matrices`.

    Returns:
        A `PeftModel` equivalent to the trained model. Each change is factored by its singular values
        (B A = U sqrt(S) sqrt(S) V^T), so that both factors have the same scale and fit half precision.
    """
    layers = _layers(model)
    change = {name: (layers[name].weight.detach() - weights).double() for name, weights in before.items()}
    rank = max(min(matrix.shape) for matrix in change.values())
    with torch.no_grad():
        for name, weights in before.items():
            layers[name].weight.copy_(weights)
    config = LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=rank, target_modules="all-linear")
    with quiet():
        wrapped: Any = get_peft_model(model, config)
    adapted = dict(wrapped.get_base_model().named_modules())
    with torch.no_grad():
        for name, matrix in change.items():
            left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
            root, layer = sizes.sqrt(), adapted[name]
            a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
            a.zero_()
            b.zero_()
            a[: len(root)] = (root[:, None] * right).to(a)
            b[:, : len(root)] = (left * root).to(b)
    return wrapped


def _layers(model: Any) -> dict[str, Any]:
    output = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not output
    }
