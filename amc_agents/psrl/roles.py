"""The three roles of LLM-PSRL (algorithm 1), and their implementations by a language model.

A role is any object with the role's method. A chat role has its own prompt; the model and the temperature come with its
`Answers`.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Sequence
from string import Formatter
from typing import Protocol, TypeVar

import numpy as np

from amc_agents.decisions import Answers, strictly
from amc_agents.errors import ConfigurationError, CriticError, DecisionError, RoleError
from amc_agents.models.seeding import use_rng
from amc_agents.quoting import quoted
from amc_agents.types import Step

T = TypeVar("T")

Check = Callable[[str, str], str]
"""Maps the old posterior and a role's answer to the error in the answer; empty if the answer is valid."""


class Sampler(Protocol):
    """Draws a hypothesis (algorithm 1, line 3)."""

    async def sample(self, world: str, posterior: str, rng: np.random.Generator) -> str:
        """Draw a hypothesis from the posterior.

        Args:
            world: the rules of the world.
            posterior: the posterior's text.
            rng: generator for the draw.
        """
        ...


class Updater(Protocol):
    """Writes the new posterior (line 6)."""

    async def update(self, world: str, posterior: str, experience: str, must_keep: Sequence[str] = ()) -> str:
        """Return the whole new posterior.

        Args:
            world: the rules of the world.
            posterior: the old posterior.
            experience: the observations, in the format of `amc_agents.psrl.roles`.
            must_keep: statements that the first try dropped.
        """
        ...


class Role:
    """A language model with one prompt. An answer that cannot be parsed gets a second try.

    Args:
        name: name of the role in messages.
        answers: sends prompts to the model.
        prompt: the template.
        fields: the fields that the template must use.
        timeout: time limit for an answer in seconds, including the second try; None for no limit.
        marked: append a random mark to the closing tag of each field, as in `</episode> 5f3a`, so that no text can
            close its own field. Used by roles that answer with a number.

    Raises:
        ConfigurationError: the template leaves out a field or has an unknown field.
    """

    def __init__(
        self,
        name: str,
        answers: Answers,
        prompt: str,
        fields: Sequence[str],
        timeout: float | None = None,
        *,
        marked: bool = False,
    ) -> None:
        used = {field for _, field, _, _ in Formatter().parse(prompt) if field is not None}
        if used != set(fields):
            raise ConfigurationError(
                f"the prompt of the {name} has the fields {sorted(used)} and needs {sorted(fields)}. Double each "
                "literal brace"
            )
        if marked:
            prompt = re.sub(rf"^</({'|'.join(fields)})>$", rf"\g<0> {secrets.token_hex(5)}", prompt, flags=re.MULTILINE)
        self._name, self._answers, self._prompt, self._timeout = name, answers, prompt, timeout

    async def ask(self, read: Callable[[str], T | None], check: Callable[[T], str] = lambda _: "", **fields: str) -> T:
        """Return one answer.

        Args:
            read: parses the text; returns None for a text in another form.
            check: finds the error in a parsed answer. The model then gets a second try, with the error in its prompt.
            **fields: the fields of the template.

        Raises:
            RoleError: the model failed, exceeded the time limit, or gave an invalid answer twice.
        """
        prompt = self._prompt.format(**fields)
        (answer,) = await self._parsed_answers(read, [prompt])
        if error := check(answer):
            (answer,) = await self._parsed_answers(read, [prompt + WRONG.format(wrong=error)])
            if error := check(answer):
                raise RoleError(self._name, f"the answer of the {self._name} is invalid, twice: {error}")
        return answer

    async def ask_all(self, read: Callable[[str], T | None], rows: Sequence[dict[str, str]]) -> list[T]:
        """Return the answers to several concurrent prompts. Raises `RoleError` if any of them fails."""
        return await self._parsed_answers(read, [self._prompt.format(**row) for row in rows])

    async def _parsed_answers(self, read: Callable[[str], T | None], prompts: Sequence[str]) -> list[T]:
        try:
            async with asyncio.timeout(self._timeout):
                answers, _ = await strictly(self._answers, prompts, [read] * len(prompts), self._name)
        except TimeoutError as error:
            raise RoleError(self._name, f"the {self._name} gave no answer within {self._timeout} seconds") from error
        except (DecisionError, CriticError) as error:
            raise RoleError(self._name, str(error)) from error
        return answers


class ChatSampler:
    """A language model that draws hypotheses.

    Args:
        answers: sends prompts to the model. Its temperature determines exploration: at 0 every draw is the same.
        prompt: a template with {world} and {posterior}.
        check: finds the error in a hypothesis, as `amc_agents.psrl.posterior.priors.impossible` does; a second
            hypothesis is then drawn.
        timeout: see `Role`.
    """

    def __init__(
        self, answers: Answers, *, prompt: str | None = None, check: Check | None = None, timeout: float | None = None
    ) -> None:
        self._role = Role("posterior sampler", answers, prompt or SAMPLE, ("world", "posterior"), timeout)
        self._check = check

    async def sample(self, world: str, posterior: str, rng: np.random.Generator) -> str:
        """Draw a hypothesis. Raises `RoleError`."""
        with use_rng(rng):
            return await self._role.ask(
                lambda text: after(text, HYPOTHESIS),
                lambda answer: self._check(posterior, answer) if self._check else "",
                world=world,
                posterior=posterior,
            )


class ChatUpdater:
    """A language model that writes the new posterior.

    Args:
        answers: sends prompts to the model.
        prompt: a template with {world}, {posterior}, {experience} and {must_keep}.
        check: finds the error in a new posterior; the model then writes it once more.
        timeout: see `Role`.
    """

    def __init__(
        self, answers: Answers, *, prompt: str | None = None, check: Check | None = None, timeout: float | None = None
    ) -> None:
        fields = ("world", "posterior", "experience", "must_keep")
        self._role = Role("posterior updater", answers, prompt or UPDATE, fields, timeout)
        self._check = check

    async def update(self, world: str, posterior: str, experience: str, must_keep: Sequence[str] = ()) -> str:
        """Return the new posterior. Raises `RoleError`."""
        statements = "\n".join(f"- {statement}" for statement in must_keep)
        return await self._role.ask(
            lambda text: after(text, POSTERIOR),
            lambda answer: self._check(posterior, answer) if self._check else "",
            world=world,
            posterior=posterior,
            experience=experience,
            must_keep=MUST_KEEP.format(statements=statements) if must_keep else "",
        )


def after(text: str, mark: str) -> str | None:
    r"""Return the text after the first `mark` at the start of a line; None if there is no such text.

    >>> after("Let me think.\nHypothesis: arm A", "Hypothesis:")
    'arm A'
    """
    lines = text.splitlines()
    for i, line in enumerate(lines):
        if line.startswith(mark):
            return "\n".join([line.removeprefix(mark), *lines[i + 1 :]]).strip() or None
    return None


def read_step(text: str) -> Step | None:
    """Parse an answer that ends in a line `Action: ...` into thought and action; None for any other answer."""
    before, mark, rest = text.rpartition(ACTION)
    action = rest.strip()
    if not mark or not action or "\n" in action or (before and not before.endswith("\n")):
        return None
    return Step(action, thought=before.strip())


DECIMAL = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
"""Regular expression of a decimal number. No digit matches two of its parts, so matching takes linear time."""

HYPOTHESIS, ACTION, POSTERIOR = "Hypothesis:", "Action:", "Posterior:"
"""Marks that introduce the roles' answers."""

SAMPLE = """\
An agent explores a world over many episodes. These are the rules that it was told:

<world>
{world}
</world>

This is what is known about the world by now, and how uncertain it is:

<posterior>
{posterior}
</posterior>

Draw one sample from this posterior: one concrete world that may be the real one. What is certain stays exactly as it \
is. What is uncertain is drawn at random, each possibility as often as the posterior gives it weight: neither the mean \
nor the likeliest value, but a draw. Say everything that decides how to act, with concrete values, and nothing about \
the agent. Work it out first where that helps, then answer in this form:

Hypothesis: <the sample, on one or more lines, and nothing after it>\
"""

UPDATE = """\
What is known about a world, and how uncertain it is, is kept in writing. You bring it up to date. These are the rules:

<world>
{world}
</world>

This is what was known before:

<posterior>
{posterior}
</posterior>

This has been observed since:

<experience>
{experience}
</experience>

Write the posterior: all that is known now, as Bayes' rule demands. Change what the observations bear on, with exact \
counts and probabilities where there are any. Repeat everything else word for word, and leave nothing out. Keep to the \
form in which it is written. Say what is uncertain and by how much. Do not tell what is new, and nothing about the \
agent or why it acted as it did.{must_keep} Answer in this form:

Posterior: <the whole new text, on one or more lines, and nothing after it>\
"""

WRONG = """

Your last answer was wrong: {wrong}
Answer again, in the form that was asked for.\
"""

MUST_KEEP = """

An earlier try left these statements out, although they were known. Keep each, changed only where the observations \
demand it:
{statements}

"""


NOTHING = "Nothing has happened yet."
"""Text of an episode without steps."""


def experience(steps: Sequence[Step], *, first: int = 0, rewards: bool = True) -> str:
    r"""Format steps as text, without thoughts: evidence about the world must not depend on the agent's beliefs.

    Args:
        steps: consecutive steps of one episode.
        first: index of the first of them in the episode, from 0.
        rewards: whether to include each step's reward; False if rewards are not measured.

    >>> print(experience([Step("look", "A door.\nA key.", reward=1.0)]))
    Step 1
    Action: look
    Observation: A door.
      A key.
    Reward: 1
    """
    return "\n".join(_text(number, step, rewards) for number, step in enumerate(steps, first + 1)) or NOTHING


def read_experience(text: str) -> tuple[Step, ...]:
    """Parse the steps that `experience` wrote. Text before the first step is ignored.

    Raises:
        ConfigurationError: a reward is not a number.
    """
    return tuple(
        Step(_plain(match["action"]), _plain(match["observation"]), reward=_reward(match["reward"]))
        for match in _STEP.finditer(text)
    )


def _reward(text: str | None) -> float:
    try:
        return float(text or 0.0)
    except ValueError:
        raise ConfigurationError(f"expected a number as the reward of a step, got {quoted(text)}") from None


def _text(number: int, step: Step, rewards: bool) -> str:
    lines = [f"Step {number}", f"Action: {_indented(step.action)}", f"Observation: {_indented(step.observation)}"]
    # All digits, so that an exact updater parses the same number.
    return "\n".join([*lines, f"Reward: {_number(step.reward)}"] if rewards else lines)


def _number(reward: float) -> str:
    return repr(float(reward)).removesuffix(".0")


def _indented(text: str) -> str:
    # Keeps a line of the world from being parsed as a field.
    return "\n  ".join(text.split("\n"))


def _plain(text: str) -> str:
    return "\n".join(line.removeprefix("  ") if i else line for i, line in enumerate(text.split("\n")))


_LINES = r"[^\n]*(?:\n  [^\n]*)*"
_STEP = re.compile(
    rf"^Step \d+\nAction: (?P<action>{_LINES})\nObservation: (?P<observation>{_LINES})(?:\nReward: (?P<reward>\S+))?$",
    re.MULTILINE,
)
