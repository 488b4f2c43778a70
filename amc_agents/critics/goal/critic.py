"""How likely goals are reached from a state after a thought: `goal:path?embeddings=SPEC` (papers: PNLC).

    goal:critics/support                                          embeddings as the checkpoint names them
    goal:critics/support?embeddings=vllm:http://host:8002?model=org/name     the same model, where it is served now

Numpy only. A question costs one request for embeddings (none for texts seen before) and one pass of a small network.
Where a chat model describes states, one request for each state, which `prepare` makes ahead.
"""

from __future__ import annotations

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
from amc_agents.errors import CheckpointError
from amc_agents.types import FloatArray, Trajectory
from amc_agents.usage import Usage, record

STATES_REMEMBERED = 256
"""Descriptions that are kept: a decision asks about one state several times."""


def from_spec(target: str, options: Mapping[str, str]) -> GoalValueCritic:
    """`goal:path?embeddings=SPEC&summary=SPEC&key_env=NAME&timeout=S&retry_for=S`.

    In SPEC, write `&` as `%26`.
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
        checkpoint: what `amc train goal` wrote, or its folder.
        embeddings: see `critics.embeddings`; None: those that the checkpoint names.
        summary: see `critics.summaries`; None: the one that the checkpoint names; a function is passed again.
        name: what messages call it.
        remembered: texts whose embeddings are kept; the oldest unused goes first.
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
        """All that it was asked so far."""
        self._embeddings = as_embeddings(checkpoint.embeddings if embeddings is None else embeddings)
        self._summary = as_summary(checkpoint.summary if summary is None else summary, prompt=checkpoint.prompt)
        if self._summary.spec != checkpoint.summary:
            raise CheckpointError(
                f"critic {self.name} was trained on states described by {checkpoint.summary!r}, and would be asked "
                f"with {self._summary.spec!r}"
            )
        self._states: OrderedDict[str, str] = OrderedDict()
        self._memory: OrderedDict[str, Vectors] = OrderedDict()
        self._remembered = remembered
        self._checked: int | None = None
        """Interruptions of the server when the golden texts were last compared; None: never."""

    async def connect(self) -> None:
        """Compare the embeddings of the golden texts; done by the first `reach`, too. Raises as `reach`."""
        await self._vectors(())

    async def reach(self, trajectory: Trajectory, thought: str, goals: Sequence[str]) -> FloatArray:
        """`[G]` in [0, 1]: how likely each goal is reached after acting on the thought.

        A probability where the checkpoint is calibrated; else Q, which falls with the steps to the goal and is
        optimistic where luck plays a part.

        Raises:
            CheckpointError: at the first use, where the embedding model is not that of training.
            CriticError: embeddings or summary failed, or a score is not finite.
        """
        if not goals:
            return np.zeros(0)
        state, said, *wanted = await self._vectors([await self._described(trajectory), thought, *goals])
        n = len(wanted)
        q = self.checkpoint.network.q(np.tile(state, (n, 1)), np.tile(said, (n, 1)), np.stack(wanted))
        q = checked_values(q, n, self.name)
        calibrated = q if self.checkpoint.calibration is None else self.checkpoint.calibration(q)
        return np.clip(calibrated, 0.0, 1.0)

    async def prepare(self, trajectory: Trajectory) -> None:
        """Describe a state ahead of `reach`, beside whatever else is waited for. Raises `CriticError`."""
        await self._described(trajectory)

    async def _described(self, trajectory: Trajectory) -> str:
        """The state as it is embedded; each is described once."""
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
        """`[D]` each; texts not seen before, and at the first use the golden ones, go out in one batch."""
        interruptions: int = getattr(self._embeddings, "interruptions", 0)
        unchecked = self._checked != interruptions
        # A server that was gone may have come back with another model: what is remembered is of the old one.
        golden = [text for one in self.checkpoint.golden for text in (one.state, one.thought, one.goal)]
        known = {} if unchecked else {text: self._memory[text] for text in texts if text in self._memory}
        new = [text for text in dict.fromkeys([*texts, *(golden if unchecked else ())]) if text not in known]
        if new:
            vectors, usage = await self._embeddings.embed(new)
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
