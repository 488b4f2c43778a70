"""Trains the goal critic: goal-conditioned implicit Q-learning over embeddings (papers: PNLC, section 4.1).

    target of Q(s, a, g) = 1                if s' is g (no bootstrap: a goal is absorbing)
                           0                if s' is terminal and not g
                           gamma V(s', g)   otherwise
    V(s, g): the tau-expectile of the target network's Q(s, a, g); 1 where s is g

A last transition that was cut short is left out unless s' is g. So Q = gamma^(k-1) for a goal k actions away. (The
paper's r(s, g) tests the current state and masks no end: taken literally, the last states of the data never pay.)
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel

from amc_agents.critics.goal.calibration import Calibration
from amc_agents.critics.goal.checkpoint import GoalCheckpoint, GoalNetwork, GoldenTriple
from amc_agents.critics.goal.embeddings import CachedEmbeddings, HashedWords, TextEmbeddings, Vectors, as_embeddings
from amc_agents.critics.goal.summaries import ChatSummary, Summary, as_summary
from amc_agents.errors import ConfigurationError, MissingExtra
from amc_agents.files import sole_writer
from amc_agents.training.dataset import data_hash
from amc_agents.training.goal.calibrating import SAME_GOAL, calibrated, independent_triples
from amc_agents.training.goal.data import Episode, GoalBatch, GoalData, GoalShares, goal_data
from amc_agents.training.goal.metrics import evaluate
from amc_agents.training.value.data import split_by_task
from amc_agents.types import Trajectory

try:
    import torch
    from torch import nn
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


@dataclass(frozen=True)
class GoalTrainingSettings:
    """How a goal critic is trained. Defaults: the paper's appendix (A.2)."""

    hidden: int = 64
    """Width of each of the two hidden layers."""
    expectile: float = 0.8
    """tau: above 0.5, V leans towards the better of the thoughts in the data."""
    discount: float = 0.99
    """gamma."""
    learning_rate: float = 4e-4
    weight_decay: float = 0.01
    batch_size: int = 32
    iterations: int = 100
    updates: int = 50
    """Updates of one iteration; losses and progress are reported after each."""
    target_rate: float = 0.005
    """Polyak: how far the target network goes towards Q at each update."""
    nearness: bool = True
    """Give the networks the inner products of state and goal, and of thought and goal, beside the embeddings. Not in
    the paper: a small network does not find out by itself that a goal speaks of the same things (docs: training)."""
    twin: bool = False
    """Two networks for Q, of which the smaller counts."""
    shares: GoalShares = field(default_factory=GoalShares)
    """Where goals come from."""
    validation_share: float = 0.2
    """Share of the tasks held out."""
    calibrate: bool = True
    """Make a probability of Q, on the held-out tasks, by goals of other trajectories (`calibrate_goal`)."""
    device: str = "cpu"
    """Where torch computes: "cpu", "cuda", ..."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        if not 0.0 < self.expectile < 1.0 or not 0.0 <= self.discount < 1.0 or not 0.0 < self.target_rate <= 1.0:
            raise ConfigurationError(
                f"expectile {self.expectile} must be between 0 and 1, discount {self.discount} in [0, 1), target_rate "
                f"{self.target_rate} in (0, 1]"
            )
        if min(self.hidden, self.batch_size, self.iterations, self.updates) < 1:
            raise ConfigurationError("hidden, batch_size, iterations and updates must be at least 1")


class GoalTrainingProgress(NamedTuple):
    """What a progress callback gets."""

    stage: str
    """"embedding" or "training"."""
    done: int
    of: int
    loss: float = 0.0
    """Of Q, over the last iteration; 0 while embedding."""


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
    """Trains a goal critic and saves it; `goal:out` loads it.

    Args:
        trajectories: of at least two tasks; an `Episode` says of one that it was cut (one that is not done was).
        out: where to write; made if need be.
        embeddings: see `critics.embeddings`.
        settings: None: the paper's.
        summary: how states are described, see `critics.summaries`.
        cache: a file that keeps embeddings and summaries, so that an interrupted training asks for none twice.
        progress: called now and then.

    Returns:
        What was written; its `metrics` are of held-out tasks.
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
    """`train_goal` where an event loop runs already, as in a notebook."""
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
    episodes = [one if isinstance(one, Episode) else Episode(one) for one in trajectories]
    of = {id(one.trajectory): one for one in episodes}
    split = split_by_task([one.trajectory for one in episodes], settings.validation_share, rng)
    describe = as_summary(summary, cache=cache)
    training, validation = [await goal_data([of[id(one)] for one in part], describe) for part in split]

    embedder = as_embeddings(embeddings)
    # Hashing is faster than reading a file.
    asked = (
        embedder
        if cache is None or isinstance(embedder, HashedWords)
        else CachedEmbeddings(
            embedder, cache, progress=lambda done, n: report(GoalTrainingProgress("embedding", done, n))
        )
    )
    texts = tuple(dict.fromkeys(training.texts + validation.texts))
    vectors, used = await asked.embed(texts)
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
        data_hash=data_hash([one.trajectory for one in episodes]),
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
    """Goal-conditioned IQL.

    Args:
        data: transitions to learn from.
        vectors: `[texts, D]` embeddings of `data.texts`.
        settings: how.
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
    """The networks, their optimiser and the update."""

    def __init__(self, dimensions: int, settings: GoalTrainingSettings) -> None:
        self._settings = settings
        # Initial weights come from torch's global generator: seed it, and leave it as it was.
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
        """One update for each `batch_size` rows; the mean losses of Q and V."""
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
        # Where the state is the goal, no action is of interest.
        trained = (batch.kept & ~batch.already).float()
        answers = torch.stack([network(triple).squeeze(1) for network in self._q])
        q_loss = (trained * (answers - target_q) ** 2).mean(dim=1).sum()
        gap = target_v - self._v(state_goal).squeeze(1)
        leaning = torch.where(gap > 0, self._settings.expectile, 1.0 - self._settings.expectile)
        v_loss = (batch.kept.float() * leaning * gap**2).mean()
        self._optimizer.zero_grad(set_to_none=True)
        (q_loss + v_loss).backward()
        self._optimizer.step()
        torch._foreach_lerp_(self._following, [one.detach() for one in self._followed], self._settings.target_rate)
        return torch.stack((q_loss.detach(), v_loss.detach()))

    def _features(self, *embeddings: torch.Tensor) -> torch.Tensor:
        """As `GoalNetwork` makes them, of scaled embeddings."""
        *others, goal = embeddings
        near = [(one * goal).sum(1, keepdim=True) / goal.shape[1] ** 0.5 for one in others]
        return torch.cat((*embeddings, *near) if self._settings.nearness else embeddings, 1)

    def weights(self) -> Mapping[str, Vectors]:
        """As `GoalNetwork` reads them."""
        named = {"q": self._q[0], "v": self._v} | ({"q2": self._q[1]} if len(self._q) > 1 else {})
        found: dict[str, Vectors] = {}
        for name, network in named.items():
            layers = [layer for layer in network if isinstance(layer, nn.Linear)]
            for index, layer in enumerate(layers):
                found[f"{name}.{index}.weight"] = layer.weight.detach().cpu().numpy().copy()
                found[f"{name}.{index}.bias"] = layer.bias.detach().cpu().numpy().copy()
        return found


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
    """The curve and its report; where the held-out data allows none, the reason, and Q stays as it is."""
    triples = independent_triples(network, data, vectors, rng, _TRIPLES, SAME_GOAL)
    try:
        curve, report = calibrated(triples, "independent", SAME_GOAL, rng)
    except ConfigurationError as error:
        return None, {"none": str(error)}
    return curve, report.as_plain()


def _golden(network: GoalNetwork, data: GoalData, vectors: Vectors) -> tuple[tuple[GoldenTriple, ...], Vectors]:
    """A few held-out triples with their embeddings: half of the goals are reached next, half lie elsewhere."""
    chosen = np.linspace(0, len(data.at) - 1, min(_GOLDEN, len(data.at))).round().astype(np.int64)
    goal = data.goal_text[np.where(np.arange(len(chosen)) % 2, data.at[chosen] + 1, data.at[chosen[::-1]])]
    rows = np.stack([data.state_text[data.at[chosen]], data.thought_text[chosen], goal], axis=1)
    found = vectors[rows]
    scores = network.q(found[:, 0], found[:, 1], found[:, 2])
    golden = (
        GoldenTriple(data.texts[state], data.texts[thought], data.texts[wanted], float(q))
        for (state, thought, wanted), q in zip(rows.tolist(), scores, strict=True)
    )
    return tuple(golden), found


_GOLDEN = 6
"""Golden triples of a checkpoint."""
_TRIPLES = 4000
"""Held-out triples that a calibration is fitted on."""
