"""Train a goal critic: goal-conditioned implicit Q-learning over embeddings (papers: PNLC, section 4.1).

    target of Q(s, a, g) = 1                if s' is g (no bootstrap: a goal is absorbing)
                           0                if s' is terminal and not g
                           gamma V(s', g)   otherwise
    V(s, g): the tau-expectile of the target network's Q(s, a, g); 1 where s is g

A truncated last transition is left out unless s' is g. So Q = gamma^(k-1) for a goal k actions away. (The paper's
r(s, g) tests the current state and does not mask the end: taken literally, the last states of the data never pay.)
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel

from amc_agents.critics.goal.checkpoint import Calibration, GoalCheckpoint, GoalNetwork, GoldenTriple
from amc_agents.critics.goal.critic import ChatSummary, Summary, as_summary
from amc_agents.critics.goal.embeddings import CachedEmbeddings, HashedWords, TextEmbeddings, Vectors, as_embeddings
from amc_agents.errors import ConfigurationError, MissingExtra
from amc_agents.files import sole_writer
from amc_agents.training.data_checks import split_by_task, task_of_trajectory
from amc_agents.training.dataset import data_hash
from amc_agents.training.goal.calibrating import SAME_GOAL, calibrated, evaluate, independent_triples
from amc_agents.training.goal.transitions import Episode, GoalBatch, GoalData, as_episodes, goal_data
from amc_agents.training.settings import GoalTrainingSettings
from amc_agents.types import Trajectory

try:
    import torch
    from torch import nn
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


class GoalTrainingProgress(NamedTuple):
    """Progress of a training."""

    stage: str
    """"embedding" or "training"."""
    done: int
    of: int
    loss: float = 0.0
    """Loss of Q over the last iteration; 0 while embedding."""


def train_goal(
    trajectories: Sequence[Trajectory | Episode],
    out: str | Path,
    embeddings: str | TextEmbeddings | Embeddings,
    settings: GoalTrainingSettings | None = None,
    *,
    summary: str | Callable[[Trajectory], str] | BaseChatModel | Summary = "none",
    cache: str | Path | None = None,
    progress: Callable[[GoalTrainingProgress], None] | None = None,
) -> GoalCheckpoint:
    """Train a goal critic and save it; `goal:out` loads it.

    Args:
        trajectories: trajectories of at least two tasks. An `Episode` can mark a trajectory as truncated; a trajectory
            that is not done always counts as truncated.
        out: folder to write; created if necessary.
        embeddings: see `critics.goal.embeddings`.
        settings: settings of the training; None: the paper's.
        summary: description of states, see `critics.goal.critic`.
        cache: file that caches embeddings and summaries, for interrupted trainings.
        progress: called after each batch of embeddings and each iteration.

    Returns:
        The saved checkpoint; its `metrics` are those of held-out tasks.
    """
    return asyncio.run(
        atrain_goal(trajectories, out, embeddings, settings, summary=summary, cache=cache, progress=progress)
    )


async def atrain_goal(
    trajectories: Sequence[Trajectory | Episode],
    out: str | Path,
    embeddings: str | TextEmbeddings | Embeddings,
    settings: GoalTrainingSettings | None = None,
    *,
    summary: str | Callable[[Trajectory], str] | BaseChatModel | Summary = "none",
    cache: str | Path | None = None,
    progress: Callable[[GoalTrainingProgress], None] | None = None,
) -> GoalCheckpoint:
    """Async version of `train_goal`, for notebooks and other running event loops."""
    with sole_writer(Path(out)):
        return await _train_goal(
            trajectories, out, embeddings, settings or GoalTrainingSettings(), summary, cache, progress
        )


async def _train_goal(
    trajectories: Sequence[Trajectory | Episode],
    out: str | Path,
    embeddings: str | TextEmbeddings | Embeddings,
    settings: GoalTrainingSettings,
    summary: str | Callable[[Trajectory], str] | BaseChatModel | Summary,
    cache: str | Path | None,
    progress: Callable[[GoalTrainingProgress], None] | None,
) -> GoalCheckpoint:
    rng = np.random.default_rng(settings.seed)
    report = progress or (lambda _: None)
    episodes = as_episodes(trajectories)
    split = split_by_task(episodes, settings.validation_share, rng, task_of=task_of_trajectory)
    describe = as_summary(summary, cache=cache)
    training, validation = [await goal_data(part, describe) for part in split]

    embedder = as_embeddings(embeddings)
    # Hashing is faster than reading a cache.
    cached = (
        embedder
        if cache is None or isinstance(embedder, HashedWords)
        else CachedEmbeddings(
            embedder, cache, progress=lambda done, n: report(GoalTrainingProgress("embedding", done, n))
        )
    )
    texts = tuple(dict.fromkeys(training.texts + validation.texts))
    vectors, used = await cached.embed(texts)
    row = {text: vector for text, vector in zip(texts, vectors, strict=True)}
    train_vectors, held_out = (np.stack([row[text] for text in part.texts]) for part in (training, validation))

    network, history = await asyncio.to_thread(fit, training, train_vectors, settings, rng, report)
    cost = {"embedding": asdict(used), "summary": asdict(training.usage + validation.usage)}
    metrics = evaluate(network, validation, held_out, settings.discount, rng)
    calibration = None
    if settings.calibrate:
        calibration, metrics["calibration"] = _calibrated(network, validation, held_out, rng)
    golden, golden_vectors = _golden(network, validation, held_out)
    checkpoint = GoalCheckpoint(
        network=network,
        dimensions=vectors.shape[1],
        embeddings=embedder.spec,
        summary=describe.spec,
        prompt=describe.prompt if isinstance(describe, ChatSummary) else None,
        golden=golden,
        golden_vectors=golden_vectors,
        calibration=calibration,
        data_hash=data_hash([episode.trajectory for episode in episodes]),
        settings=asdict(settings),
        metrics=metrics | {"history": history, "usage": cost},
    )
    checkpoint.save(out)
    return checkpoint


def fit(
    data: GoalData,
    vectors: Vectors,
    settings: GoalTrainingSettings,
    rng: np.random.Generator,
    progress: Callable[[GoalTrainingProgress], None] | None = None,
) -> tuple[GoalNetwork, list[dict[str, float]]]:
    """Train the networks by goal-conditioned IQL.

    Args:
        data: transitions to learn from.
        vectors: `[texts, D]` embeddings of `data.texts`.
        settings: settings of the training.
        rng: draws the batches.
        progress: called after each iteration.

    Returns:
        The networks, and the losses of each iteration.

    Raises:
        ConfigurationError: the losses are not finite.
    """
    scale = 1.0 / max(float(np.sqrt(np.mean(np.square(vectors)))), 1e-12)
    table = torch.from_numpy(scale * vectors).to(settings.device)
    learner = _Learner(vectors.shape[1], settings)
    history: list[dict[str, float]] = []
    for iteration in range(1, settings.iterations + 1):
        batch = data.sample(rng, settings.updates * settings.batch_size, settings.shares, settings.discount)
        losses = learner.update_all(table, batch)
        if not np.all(np.isfinite(losses)):
            raise ConfigurationError(f"the losses of iteration {iteration} are {losses}: lower the learning rate")
        history.append({"iteration": iteration, "q_loss": losses[0], "v_loss": losses[1]})
        if progress is not None:
            progress(GoalTrainingProgress("training", iteration, settings.iterations, losses[0]))
    return GoalNetwork(learner.weights(), scale, settings.nearness), history


class _Learner:
    """The networks, their optimizer and the update."""

    def __init__(self, dimensions: int, settings: GoalTrainingSettings) -> None:
        self._settings = settings
        # Initial weights come from torch's global generator: seed it, then restore its state.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            inputs_q, inputs_v = 3 * dimensions + 2 * settings.nearness, 2 * dimensions + settings.nearness
            self._q = [_mlp(inputs_q, settings.hidden).to(settings.device) for _ in range(1 + settings.twin)]
            self._v = _mlp(inputs_v, settings.hidden).to(settings.device)
        self._target = copy.deepcopy(self._q)
        self._followed = [parameter for network in self._q for parameter in network.parameters()]
        self._following = [parameter.detach() for network in self._target for parameter in network.parameters()]
        self._optimizer = torch.optim.AdamW(
            [*self._followed, *self._v.parameters()], lr=settings.learning_rate, weight_decay=settings.weight_decay
        )

    def update_all(self, table: torch.Tensor, batch: GoalBatch) -> tuple[float, float]:
        """Make an update for each `batch_size` rows; return the mean losses of Q and V."""
        columns = [torch.from_numpy(column).to(table.device) for column in batch]
        parts = zip(*(torch.split(column, self._settings.batch_size) for column in columns), strict=True)
        losses = [self._update(table, _Rows(*part)) for part in parts]
        mean = torch.stack(losses).mean(dim=0).cpu()
        return float(mean[0]), float(mean[1])

    def _update(self, table: torch.Tensor, batch: _Rows) -> torch.Tensor:
        state, thought, goal = table[batch.state], table[batch.thought], table[batch.goal]
        state_goal, triple = self._features(state, goal), self._features(state, thought, goal)
        with torch.no_grad():
            to_come = self._v(self._features(table[batch.next_state], goal)).squeeze(1)
            target_q = torch.where(batch.reached, 1.0, torch.where(batch.ended, 0.0, self._settings.discount * to_come))
            best = torch.stack([network(triple).squeeze(1) for network in self._target]).amin(dim=0)
            target_v = torch.where(batch.already, 1.0, best)
        # Where the state is the goal, actions do not matter.
        trained = (batch.kept & ~batch.already).float()
        q = torch.stack([network(triple).squeeze(1) for network in self._q])
        q_loss = (trained * (q - target_q) ** 2).mean(dim=1).sum()
        gap = target_v - self._v(state_goal).squeeze(1)
        weight = torch.where(gap > 0, self._settings.expectile, 1.0 - self._settings.expectile)
        v_loss = (batch.kept.float() * weight * gap**2).mean()
        self._optimizer.zero_grad(set_to_none=True)
        (q_loss + v_loss).backward()
        self._optimizer.step()
        torch._foreach_lerp_(
            self._following, [parameter.detach() for parameter in self._followed], self._settings.target_rate
        )
        return torch.stack((q_loss.detach(), v_loss.detach()))

    def _features(self, *embeddings: torch.Tensor) -> torch.Tensor:
        """Compute the features of `GoalNetwork` from scaled embeddings."""
        *others, goal = embeddings
        near = [(other * goal).sum(1, keepdim=True) / goal.shape[1] ** 0.5 for other in others]
        return torch.cat((*embeddings, *near) if self._settings.nearness else embeddings, 1)

    def weights(self) -> Mapping[str, Vectors]:
        """Return the weights in the format of `GoalNetwork`."""
        named = {"q": self._q[0], "v": self._v} | ({"q2": self._q[1]} if len(self._q) > 1 else {})
        weights: dict[str, Vectors] = {}
        for name, network in named.items():
            layers = [layer for layer in network if isinstance(layer, nn.Linear)]
            for index, layer in enumerate(layers):
                weights[f"{name}.{index}.weight"] = layer.weight.detach().cpu().numpy().copy()
                weights[f"{name}.{index}.bias"] = layer.bias.detach().cpu().numpy().copy()
        return weights


class _Rows(NamedTuple):
    """`GoalBatch` in torch."""

    state: torch.Tensor
    thought: torch.Tensor
    next_state: torch.Tensor
    goal: torch.Tensor
    reached: torch.Tensor
    ended: torch.Tensor
    already: torch.Tensor
    kept: torch.Tensor


def _mlp(inputs: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
    )


def _calibrated(
    network: GoalNetwork, data: GoalData, vectors: Vectors, rng: np.random.Generator
) -> tuple[Calibration | None, dict[str, Any]]:
    """Return the curve and its report; or None and the reason if the held-out data does not allow a calibration."""
    triples = independent_triples(network, data, vectors, rng, _TRIPLES, SAME_GOAL)
    try:
        curve, report = calibrated(triples, "independent", SAME_GOAL, rng)
    except ConfigurationError as error:
        return None, {"none": str(error)}
    return curve, report.as_plain()


def _golden(network: GoalNetwork, data: GoalData, vectors: Vectors) -> tuple[tuple[GoldenTriple, ...], Vectors]:
    """Choose a few held-out triples: half of the goals are the next state, half are states elsewhere."""
    chosen = np.linspace(0, len(data.at) - 1, min(_GOLDEN, len(data.at))).round().astype(np.int64)
    goal = data.goal_text[np.where(np.arange(len(chosen)) % 2, data.at[chosen] + 1, data.at[chosen[::-1]])]
    rows = np.stack([data.state_text[data.at[chosen]], data.thought_text[chosen], goal], axis=1)
    embedded = vectors[rows]
    scores = network.q(embedded[:, 0], embedded[:, 1], embedded[:, 2])
    golden = (
        GoldenTriple(data.texts[state], data.texts[thought], data.texts[target], float(q))
        for (state, thought, target), q in zip(rows.tolist(), scores, strict=True)
    )
    return tuple(golden), embedded


_GOLDEN = 6
"""Number of golden triples of a checkpoint."""
_TRIPLES = 4000
"""Number of held-out triples for the calibration."""
