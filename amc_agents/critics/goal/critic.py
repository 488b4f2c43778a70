"""The goal critic: the probability of reaching a goal from a state after a thought (paper: PNLC).

    goal:critics/support                                                     the embedding model of the checkpoint
    goal:critics/support?embeddings=vllm:http://host:8002?model=org/name     the same model on another server

Runs in numpy. A call costs one request for embeddings (none for texts seen before) and one pass of a small network. If
a chat model describes states, each state costs one request, which `prepare` can make in advance.

A summary gives the text of a state itself, and its text as a goal; training and decisions use the same one:

    none              the state is the whole history, the goal the newest observation
    provider:model    a chat model's summary is both
    a function        its text is both
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage

from amc_agents.concurrency.gather import side_by_side
from amc_agents.critics.adapting import checked_values
from amc_agents.critics.asking import PATIENCE, CriticChatModel, build_model, usage_of
from amc_agents.critics.goal.checkpoint import GoalCheckpoint
from amc_agents.critics.goal.embeddings import DiskCache, TextEmbeddings, Vectors, as_embeddings
from amc_agents.critics.render import turn
from amc_agents.critics.spec import allow, needed
from amc_agents.errors import CheckpointError, ConfigurationError, CriticError, CriticSpecError
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


class Described(NamedTuple):
    """Descriptions of states."""

    states: list[str]
    """`[n]` text of each state."""
    goals: list[str]
    """`[n]` text of each state as a goal."""
    usage: Usage
    """Usage of the calls."""


class Summary(Protocol):
    """Describes states."""

    @property
    def spec(self) -> str:
        """Name of the summary in checkpoints."""
        ...

    async def describe(self, states: Sequence[Trajectory]) -> Described:
        """Describe the newest state of each trajectory. Raises `CriticError`."""
        ...


def as_summary(
    summary: str | Callable[[Trajectory], str] | BaseChatModel | Summary,
    *,
    cache: str | Path | None = None,
    prompt: str | None = None,
) -> Summary:
    """Build a summary.

    Args:
        summary: "none", "provider:model", a chat model, a function, or a `Summary`, which is returned unchanged.
        cache: cache file for a chat model's answers.
        prompt: prompt of a chat model, with the field {trajectory}. None: `PROMPT`.

    Raises:
        CriticSpecError: the string or the prompt is invalid.
    """
    if isinstance(summary, BaseChatModel):
        return ChatSummary(summary, cache=cache, prompt=prompt)
    if hasattr(summary, "describe"):
        return summary  # type: ignore[return-value]
    if not isinstance(summary, str):
        return FunctionSummary(summary)
    if summary == "none":
        return LastState()
    if ":" not in summary or summary.startswith("function:"):
        raise CriticSpecError(
            f'invalid summary {quoted(summary)}: expected "none" or provider:model, or in Python a function or a chat '
            "model (the same as in the critic's training)"
        )
    try:
        model = build_model(summary, temperature=0.0)
    except ConfigurationError as error:
        raise CriticSpecError(f"summary {quoted(summary)}: {error}") from error
    return ChatSummary(model, spec=summary, cache=cache, prompt=prompt)


class LastState:
    """The whole history as the state, and the newest observation (at the start, the instruction) as the goal."""

    spec = "none"

    async def describe(self, states: Sequence[Trajectory]) -> Described:
        """Describe the states without any calls."""
        goals = [state.steps[-1].observation if state.steps else state.task.instruction for state in states]
        return Described([written(state) for state in states], goals, Usage())


class FunctionSummary:
    """A user's function that describes trajectories.

    Args:
        function: returns the text of a trajectory; must be deterministic.
    """

    def __init__(self, function: Callable[[Trajectory], str]) -> None:
        self._function = function
        self.spec = f"function:{getattr(function, '__qualname__', type(function).__name__)}"

    async def describe(self, states: Sequence[Trajectory]) -> Described:
        """Describe the states by the function."""
        texts = [self._function(state) for state in states]
        return Described(texts, texts, Usage())


class ChatSummary:
    """A chat model that summarises histories concurrently, each distinct history once.

    Args:
        model: the chat model.
        spec: name of the summary; None: the class of the model and its `model` or `model_name`.
        prompt: prompt with the field {trajectory}; None: `PROMPT`.
        cache: cache file, to which each answer is written when it arrives.
        n_concurrent: maximum number of concurrent requests.
        timeout: time limit of an answer in seconds, including LangChain's retries.

    Raises:
        CriticSpecError: the prompt has no {trajectory}.
    """

    def __init__(
        self,
        model: BaseChatModel,
        *,
        spec: str | None = None,
        prompt: str | None = None,
        cache: str | Path | None = None,
        n_concurrent: int = 8,
        timeout: float = PATIENCE,
    ) -> None:
        name = getattr(model, "model_name", None) or getattr(model, "model", None) or ""
        self.spec = spec or f"object:{type(model).__name__}:{name}"
        # `describe` returns the usage.
        self._model = CriticChatModel(
            model,
            who=f"summary {self.spec}",
            run_name="summary",
            max_concurrent=n_concurrent,
            timeout=timeout,
            recorded=False,
        )
        self.prompt = PROMPT if prompt is None else prompt
        if "{trajectory}" not in self.prompt:
            raise CriticSpecError("the prompt of a summary has no {trajectory}: add it where the history belongs")
        self._cache = None if cache is None else DiskCache(cache, f"summary {self.spec}\0{self.prompt}")

    async def describe(self, states: Sequence[Trajectory]) -> Described:
        """Summarise the states. Raises `CriticError` if the model fails or its answer is empty."""
        texts = [written(state) for state in states]
        known = await self._read_cache(texts)

        async def ask(text: str) -> Usage:
            known[text], usage = await self._ask(text)
            if self._cache is not None:
                # No await before the write, so that the failure of another request cannot lose a paid answer.
                self._cache.put({text: known[text].encode()})
            return usage

        # A failure stops the other requests; the cache keeps their answers so far.
        used = await side_by_side(*(ask(text) for text in dict.fromkeys(texts) if text not in known))
        summaries = [known[text] for text in texts]
        return Described(summaries, summaries, sum(used, Usage()))

    async def _read_cache(self, texts: Sequence[str]) -> dict[str, str]:
        if self._cache is None:
            return {}
        return {text: answer.decode() for text, answer in (await asyncio.to_thread(self._cache.get, texts)).items()}

    async def _ask(self, text: str) -> tuple[str, Usage]:
        answer = await self._model.ask([HumanMessage(self.prompt.replace("{trajectory}", text))])
        summary = answer.text.strip()
        if not summary:
            raise CriticError(
                f"summary {self.spec}: expected a summary of a history of {len(text)} characters, got an empty answer"
            )
        return summary, usage_of(answer)


def written(state: Trajectory) -> str:
    """Write the whole history of a state as plain text."""
    rounds = (f"{turn(step)}\nObservation: {step.observation}" for step in state.steps)
    return "\n".join((state.task.instruction, *rounds))


PROMPT = """\
Below is what an agent was asked to do and what has happened so far. Say in at most three plain sentences where it
stands now: what it has found or achieved, what has failed, what it knows that matters for its next decision. Describe
the situation, not the steps that led to it, and give no advice.

{trajectory}

Summary:"""
