"""The goal critic: the probability of reaching a goal from a state after a thought (paper: PNLC).

    goal:critics/support                                                     the embedding model of the checkpoint
    goal:critics/support?embeddings=vllm:http://host:8002?model=org/name     the same model on another server

Runs in numpy. A call costs one request for embeddings (none for texts seen before) and one pass of a small network. If
a chat model describes states, each state costs one request, which `prepare` can make in advance.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel

from amc_agents.critics.goal.checkpoint import GoalCheckpoint
from amc_agents.critics.goal.embeddings import TextEmbeddings, Vectors, as_embeddings
from amc_agents.critics.goal.summaries import Summary, as_summary, written
from amc_agents.critics.options import allow, needed
from amc_agents.critics.validation import checked_values
from amc_agents.errors import CheckpointError, CriticError
from amc_agents.quoting import quoted
from amc_agents.types import FloatArray, Trajectory
from amc_agents.usage import Usage, record

STATES_REMEMBERED = 256
"""Number of cached descriptions; a decision scores the same state several times."""


def from_spec(target: str, options: Mapping[str, str]) -> GoalValueCritic:
    """Build the critic of `goal:path?embeddings=SPEC&summary=SPEC&key_env=NAME&timeout=S&retry_for=S`.

    Write `&` in a SPEC as `%26`.

    Raises:
        CriticSpecError: an option is invalid.
        CheckpointError: the folder is not a goal checkpoint.
    """
    allow("goal", options, "embeddings", "summary", "key_env", "timeout", "retry_for")
    folder = needed("goal", target, "path/to/goal")
    checkpoint = GoalCheckpoint.load(folder)
    served = {name: options[name] for name in ("timeout", "retry_for") if name in options}
    return GoalValueCritic(
        checkpoint,
        embeddings=as_embeddings(
            options.get("embeddings", checkpoint.embeddings), key_env=options.get("key_env"), **served
        ),
        summary=options.get("summary", checkpoint.summary),
        name=f"goal:{folder}",
    )


class GoalValueCritic:
    """A goal-conditioned value function over embeddings of state, thought and goal.

    Args:
        checkpoint: a checkpoint of `amc train goal`, or its folder.
        embeddings: see `as_embeddings`; None: the checkpoint's embedding model.
        summary: see `as_summary`; None: the checkpoint's summary; a function must be passed again.
        name: name in messages.
        remembered: number of texts whose embeddings are cached; the least recently used are dropped first.

    Raises:
        CheckpointError: the checkpoint is invalid, or was trained with another summary.
    """

    def __init__(
        self,
        checkpoint: GoalCheckpoint | str | Path,
        *,
        embeddings: str | TextEmbeddings | Embeddings | None = None,
        summary: str | Callable[[Trajectory], str] | BaseChatModel | Summary | None = None,
        name: str = "",
        remembered: int = 4096,
    ) -> None:
        self.name = name or (f"goal:{checkpoint}" if not isinstance(checkpoint, GoalCheckpoint) else "goal")
        if not isinstance(checkpoint, GoalCheckpoint):
            checkpoint = GoalCheckpoint.load(checkpoint)
        self.checkpoint = checkpoint
        self.usage = Usage()
        """Usage of all calls so far."""
        self._embeddings = as_embeddings(checkpoint.embeddings if embeddings is None else embeddings)
        self._summary = as_summary(checkpoint.summary if summary is None else summary, prompt=checkpoint.prompt)
        if self._summary.spec != checkpoint.summary:
            raise CheckpointError(
                f"critic {self.name} was trained on states described by {quoted(checkpoint.summary)}, got "
                f"summary={quoted(self._summary.spec)}: pass the summary of training"
            )
        self._states: OrderedDict[str, str] = OrderedDict()
        self._memory: OrderedDict[str, Vectors] = OrderedDict()
        self._remembered = remembered
        self._checked: int | None = None
        """Interruptions of the server at the last comparison of golden texts; None before the first comparison."""

    async def connect(self) -> None:
        """Compare the embeddings of the golden texts, as the first `reach` does. Raises as `reach`."""
        await self._vectors(())

    async def reach(self, trajectory: Trajectory, thought: str, goals: Sequence[str]) -> FloatArray:
        """Score how likely each goal is reached after acting on the thought: `[G]` in [0, 1].

        The score is a probability if the checkpoint is calibrated; else it is Q, which decreases with the number of
        steps to the goal and is optimistic in stochastic worlds.

        Raises:
            CheckpointError: at the first use, if the embedding model differs from that of training.
            CriticError: embeddings or summary failed, or a score is not finite.
        """
        if not goals:
            return np.zeros(0)
        described = await self._described(trajectory)
        state, thought_vector, *goal_vectors = await self._vectors([described, thought, *goals])
        n = len(goals)
        q = self.checkpoint.network.q(np.tile(state, (n, 1)), np.tile(thought_vector, (n, 1)), np.stack(goal_vectors))
        q = checked_values(q, n, self.name)
        calibrated = q if self.checkpoint.calibration is None else self.checkpoint.calibration(q)
        return np.clip(calibrated, 0.0, 1.0)

    async def prepare(self, trajectory: Trajectory) -> None:
        """Describe a state before `reach` needs it, concurrently with other work. Raises `CriticError`."""
        await self._described(trajectory)

    async def _described(self, trajectory: Trajectory) -> str:
        """Return the cached description of a state for its embedding."""
        key = written(trajectory)
        if key not in self._states:
            described = await self._summary.describe([trajectory])
            self._count(described.usage, self._summary.spec)
            self._states[key] = described.states[0]
            if len(self._states) > STATES_REMEMBERED:
                self._states.popitem(last=False)
            return described.states[0]
        return self._states[key]

    async def _vectors(self, texts: Sequence[str]) -> list[Vectors]:
        """Return a vector `[D]` per text; new texts, and at the first use the golden texts, form one batch."""
        for _ in range(_ATTEMPTS):
            interruptions = self._interruptions
            vectors = await self._asked(texts, interruptions)
            # After an interruption meanwhile, another model may have embedded the new texts only.
            if interruptions == self._interruptions:
                return vectors
        raise CriticError(
            f"critic {self.name}: its embedding server was interrupted during each of {_ATTEMPTS} attempts: see the "
            "server's log"
        )

    @property
    def _interruptions(self) -> int:
        return getattr(self._embeddings, "interruptions", 0)

    async def _asked(self, texts: Sequence[str], interruptions: int) -> list[Vectors]:
        """`_vectors`, unless the server is interrupted meanwhile."""
        unchecked = self._checked != interruptions
        # After an interruption the server may have another model, so cached vectors are not used.
        golden = [text for triple in self.checkpoint.golden for text in (triple.state, triple.thought, triple.goal)]
        known = {} if unchecked else {text: self._memory[text] for text in texts if text in self._memory}
        new = [text for text in dict.fromkeys([*texts, *(golden if unchecked else ())]) if text not in known]
        if new:
            try:
                vectors, usage = await self._embeddings.embed(new)
            except (CriticError, asyncio.CancelledError):
                self._count(Usage(calls=1, missing=1), self._embeddings.spec)
                raise
            self._count(usage, self._embeddings.spec)
            known |= dict(zip(new, vectors, strict=True))
        if unchecked:
            rows = np.stack([known[text] for text in golden])
            self.checkpoint.check(rows.reshape(len(golden) // 3, 3, -1), f"critic {self.name}")
            self._memory.clear()
            self._checked = interruptions
        for text in texts:
            self._memory[text] = known[text]
            self._memory.move_to_end(text)
        while len(self._memory) > self._remembered:
            self._memory.popitem(last=False)
        return [known[text] for text in texts]

    def _count(self, usage: Usage, model: str) -> None:
        if usage != Usage():
            self.usage += usage
            record("critic", usage, model=model)


_ATTEMPTS = 3
"""Number of tries of an embedding during which the server is interrupted."""
