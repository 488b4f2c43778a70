"""Trajectory -> the two texts that the goal critic embeds: the state, and what the state is called as a goal.

    none              the state is all that the agent has seen, the goal what the world answered last
    provider:model    a chat model summarises; the summary is both
    a function        its text is both

The same object describes states in training and at decision time.
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
from amc_agents.types import Trajectory
from amc_agents.usage import Usage


class Described(NamedTuple):
    """The texts of some states."""

    states: list[str]
    """`[n]` what each state is embedded as."""
    goals: list[str]
    """`[n]` what each state is embedded as where it is a goal."""
    usage: Usage
    """What that cost."""


class Summary(Protocol):
    """Describes states."""

    @property
    def spec(self) -> str:
        """Names it; a checkpoint carries it."""
        ...

    async def describe(self, states: Sequence[Trajectory]) -> Described:
        """The texts of the newest state of each trajectory."""
        ...


def as_summary(
    summary: str | Callable[[Trajectory], str] | BaseChatModel | Summary,
    *,
    cache: str | Path | None = None,
    prompt: str | None = None,
) -> Summary:
    """A summary from "none", "provider:model", a chat model or a function; a `Summary` is given back as it is.

    Args:
        summary: which one.
        cache: a file in which a chat model's answers are kept.
        prompt: for a chat model; uses {trajectory}. None: `PROMPT`.

    Raises:
        CriticSpecError: the string was not understood.
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
            f'summary {summary!r} was not understood: expected "none" or provider:model, or in Python a function or a '
            "chat model (pass the one that the critic was trained with)"
        )
    try:
        model = build_model(summary, temperature=0.0)
    except ConfigurationError as error:
        raise CriticSpecError(f"summary {summary!r}: {error}") from error
    return ChatSummary(model, spec=summary, cache=cache, prompt=prompt)


class LastState:
    """No summary: the state as it is, and its newest observation as a goal (at the start: the instruction)."""

    spec = "none"

    async def describe(self, states: Sequence[Trajectory]) -> Described:
        """The texts, at no cost."""
        goals = [one.steps[-1].observation if one.steps else one.task.instruction for one in states]
        return Described([written(one) for one in states], goals, Usage())


class FunctionSummary:
    """A function of yours: trajectory -> text.

    Args:
        function: gives the same text for the same trajectory.
    """

    def __init__(self, function: Callable[[Trajectory], str]) -> None:
        self._function = function
        self.spec = f"function:{getattr(function, '__qualname__', type(function).__name__)}"

    async def describe(self, states: Sequence[Trajectory]) -> Described:
        """The function's texts."""
        texts = [self._function(one) for one in states]
        return Described(texts, texts, Usage())


class ChatSummary:
    """A chat model that summarises the history, concurrently; each history once.

    Args:
        model: who is asked.
        spec: names it; None: its class and its `model` or `model_name`.
        prompt: uses {trajectory}; None: `PROMPT`.
        cache: a file in which answers are kept, each as it comes.
        n_concurrent: requests under way at the same time.
        timeout: seconds within which an answer has to be complete, LangChain's own retries included.
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
        # What it costs is said by `describe`.
        self._asked = CriticChatModel(
            model,
            who=f"summary {self.spec}",
            run_name="summary",
            max_concurrent=n_concurrent,
            timeout=timeout,
            recorded=False,
        )
        self.prompt = PROMPT if prompt is None else prompt
        if "{trajectory}" not in self.prompt:
            raise CriticSpecError("the prompt of a summary has no {trajectory}: there would be nothing to summarise")
        self._cache = None if cache is None else DiskCache(cache, f"summary {self.spec}\0{self.prompt}")

    async def describe(self, states: Sequence[Trajectory]) -> Described:
        """Summaries by the model. Raises `CriticError` where it fails, or answers nothing."""
        texts = [written(one) for one in states]
        known = await self._known(texts)

        async def ask(text: str) -> Usage:
            known[text], usage = await self._ask(text)
            if self._cache is not None:
                # Without a pause in which another's failure could take away what was paid for.
                self._cache.put({text: known[text].encode()})
            return usage

        # A failure stops the others; what was answered is kept.
        used = await side_by_side(*(ask(text) for text in dict.fromkeys(texts) if text not in known))
        found = [known[text] for text in texts]
        return Described(found, found, sum(used, Usage()))

    async def _known(self, texts: Sequence[str]) -> dict[str, str]:
        if self._cache is None:
            return {}
        return {text: answer.decode() for text, answer in (await asyncio.to_thread(self._cache.get, texts)).items()}

    async def _ask(self, text: str) -> tuple[str, Usage]:
        answer = await self._asked.ask([HumanMessage(self.prompt.replace("{trajectory}", text))])
        summary = answer.text.strip()
        if not summary:
            raise CriticError(f"summary {self.spec}: the model answered nothing to a history of {len(text)} characters")
        return summary, usage_of(answer)


def written(state: Trajectory) -> str:
    """All that the agent has seen, in plain words."""
    rounds = (f"{turn(step)}\nObservation: {step.observation}" for step in state.steps)
    return "\n".join((state.task.instruction, *rounds))


PROMPT = """\
Below is what an agent was asked to do and what has happened so far. Say in at most three plain sentences where it
stands now: what it has found or achieved, what has failed, what it knows that matters for its next decision. Describe
the situation, not the steps that led to it, and give no advice.

{trajectory}

Summary:"""
