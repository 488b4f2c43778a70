"""Descriptions of states for the goal critic: a text of the state itself, and a text of the state as a goal.

    none              the state is the whole history, the goal the newest observation
    provider:model    a chat model's summary is both
    a function        its text is both

Training and decisions use the same description.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage

from amc_agents.concurrency.gather import side_by_side
from amc_agents.critics.asking import PATIENCE, CriticChatModel, build_model, usage_of
from amc_agents.critics.disk_cache import DiskCache
from amc_agents.critics.render import turn
from amc_agents.errors import ConfigurationError, CriticError, CriticSpecError
from amc_agents.quoting import quoted
from amc_agents.types import Trajectory
from amc_agents.usage import Usage


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
