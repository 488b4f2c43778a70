"""The three roles of LLM-PSRL (algorithm 1), and how a language model plays each: prompts in, text out.

A role is anything with its one method; each has a model, a temperature (both belong to whoever makes its `Answers`) and
a prompt of its own. Exact ones, where a conjugate model exists: `amc_agents.psrl.exact.roles`.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Sequence
from string import Formatter
from typing import Protocol, TypeVar

import numpy as np

from amc_agents.decisions.asking import Answers, strictly
from amc_agents.errors import ConfigurationError, CriticError, DecisionError, RoleError
from amc_agents.models.seeding import use_rng
from amc_agents.psrl.experience import experience
from amc_agents.types import Step, Trajectory

T = TypeVar("T")

Check = Callable[[str, str], str]
"""The posterior before, and what a role made of it -> what is wrong with it; empty where nothing is."""


class Sampler(Protocol):
    """Draws a hypothesis (algorithm 1, line 3)."""

    async def sample(self, world: str, posterior: str, rng: np.random.Generator) -> str:
        """One hypothesis, as plausible as the posterior says.

        Args:
            world: what is known of the world without any experience: its rules.
            posterior: what is believed.
            rng: all luck.
        """
        ...


class SamplePolicy(Protocol):
    """Acts as if a hypothesis were the truth (lines 4 and 5)."""

    async def act(self, world: str, hypothesis: str, trajectory: Trajectory) -> Step:
        """The optimal thought and action in the state that the trajectory has led to, under the hypothesis."""
        ...


class Updater(Protocol):
    """Writes the posterior anew (line 6)."""

    async def update(self, world: str, posterior: str, experience: str, must_keep: Sequence[str] = ()) -> str:
        """The whole new posterior.

        Args:
            world: as for `Sampler`.
            posterior: what was believed before.
            experience: what happened, as `amc_agents.psrl.experience` writes it.
            must_keep: statements that a first try left out.
        """
        ...


class Role:
    """A language model with one prompt, asked strictly: one more try where its answer cannot be read.

    Args:
        name: of the role, for messages.
        answers: asks its model.
        prompt: the template.
        fields: that the template has to use.
        timeout: seconds for an answer, the second try included; None: as long as it takes.
        marked: the tags that close a field get a random mark, `</episode> 5f3a`, so that no text can close its own: for
            roles that say a number.

    Raises:
        ConfigurationError: the template leaves out a field, or has an unknown one.
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
        used = {found for _, found, _, _ in Formatter().parse(prompt) if found is not None}
        if used != set(fields):
            raise ConfigurationError(
                f"the prompt of the {name} has the fields {sorted(used)} and needs {sorted(fields)}. Write a brace "
                "that is meant as one twice"
            )
        if marked:
            prompt = re.sub(rf"^</({'|'.join(fields)})>$", rf"\g<0> {secrets.token_hex(5)}", prompt, flags=re.MULTILINE)
        self._name, self._answers, self._prompt, self._timeout = name, answers, prompt, timeout

    async def ask(self, read: Callable[[str], T | None], check: Callable[[T], str] = lambda _: "", **fields: str) -> T:
        """One answer.

        Args:
            read: gives None for a text in another form.
            check: says what is wrong with what was read; then it is asked once more, and told so.
            **fields: of the template.

        Raises:
            RoleError: the model failed, took too long, or answered in another form or wrongly, twice.
        """
        prompt = self._prompt.format(**fields)
        (found,) = await self._asked(read, [prompt])
        if wrong := check(found):
            (found,) = await self._asked(read, [prompt + WRONG.format(wrong=wrong)])
            if wrong := check(found):
                raise RoleError(self._name, f"what the {self._name} answered is wrong, twice: {wrong}")
        return found

    async def ask_all(self, read: Callable[[str], T | None], rows: Sequence[dict[str, str]]) -> list[T]:
        """Answers to several prompts, asked side by side. Raises `RoleError` where one of them cannot be had."""
        return await self._asked(read, [self._prompt.format(**row) for row in rows])

    async def _asked(self, read: Callable[[str], T | None], prompts: Sequence[str]) -> list[T]:
        try:
            async with asyncio.timeout(self._timeout):
                found, _ = await strictly(self._answers, prompts, [read] * len(prompts), self._name)
        except TimeoutError as error:
            raise RoleError(self._name, f"the {self._name} gave no answer within {self._timeout} seconds") from error
        except (DecisionError, CriticError) as error:
            raise RoleError(self._name, str(error)) from error
        return found


class ChatSampler:
    """A language model that draws hypotheses.

    Args:
        answers: asks it. Its temperature decides how it explores: at 0 it draws the same every time.
        prompt: uses {world} and {posterior}.
        check: what is wrong with a hypothesis, such as `amc_agents.psrl.exact.roles.impossible`; it is then drawn
            once more.
        timeout: see `Role`.
    """

    def __init__(
        self, answers: Answers, *, prompt: str | None = None, check: Check | None = None, timeout: float | None = None
    ) -> None:
        self._role = Role("posterior sampler", answers, prompt or SAMPLE, ("world", "posterior"), timeout)
        self._check = check

    async def sample(self, world: str, posterior: str, rng: np.random.Generator) -> str:
        """See `Sampler`. Raises `RoleError`."""
        with use_rng(rng):
            return await self._role.ask(
                lambda text: after(text, HYPOTHESIS),
                lambda found: self._check(posterior, found) if self._check else "",
                world=world,
                posterior=posterior,
            )


class ChatPolicy:
    """A language model that acts on a hypothesis. What it says before its action is its thought.

    Args:
        answers: asks it.
        prompt: uses {world}, {hypothesis} and {episode}.
        timeout: see `Role`.
    """

    def __init__(self, answers: Answers, *, prompt: str | None = None, timeout: float | None = None) -> None:
        self._role = Role("policy", answers, prompt or ACT, ("world", "hypothesis", "episode"), timeout)

    async def act(self, world: str, hypothesis: str, trajectory: Trajectory) -> Step:
        """See `SamplePolicy`. An action that the world does not know is the agent's mistake: the world answers it.

        Raises:
            RoleError: it named no action.
        """
        told = experience(trajectory.steps)
        return await self._role.ask(read_step, world=world, hypothesis=hypothesis, episode=told)


class ChatUpdater:
    """A language model that writes the posterior anew.

    Args:
        answers: asks it.
        prompt: uses {world}, {posterior}, {experience} and {must_keep}.
        check: what is wrong with a new posterior; it is then written once more.
        timeout: see `Role`.
    """

    def __init__(
        self, answers: Answers, *, prompt: str | None = None, check: Check | None = None, timeout: float | None = None
    ) -> None:
        fields = ("world", "posterior", "experience", "must_keep")
        self._role = Role("posterior updater", answers, prompt or UPDATE, fields, timeout)
        self._check = check

    async def update(self, world: str, posterior: str, experience: str, must_keep: Sequence[str] = ()) -> str:
        """See `Updater`. Raises `RoleError`."""
        return await self._role.ask(
            lambda text: after(text, POSTERIOR),
            lambda found: self._check(posterior, found) if self._check else "",
            world=world,
            posterior=posterior,
            experience=experience,
            must_keep=MUST_KEEP.format(statements="\n".join(f"- {one}" for one in must_keep)) if must_keep else "",
        )


def after(text: str, mark: str) -> str | None:
    r"""What follows the first line that begins with `mark`, or None where there is none, or nothing follows.

    >>> after("Let me think.\nHypothesis: arm A", "Hypothesis:")
    'arm A'
    """
    lines = text.splitlines()
    for i, line in enumerate(lines):
        if line.startswith(mark):
            return "\n".join([line.removeprefix(mark), *lines[i + 1 :]]).strip() or None
    return None


def read_step(text: str) -> Step | None:
    """Thought and action of an answer that ends in a line `Action: ...`; None for any other."""
    before, mark, action = text.rpartition(ACTION)
    one_line = action.strip()
    if not mark or not one_line or "\n" in one_line or (before and not before.endswith("\n")):
        return None
    return Step(one_line, thought=before.strip())


DECIMAL = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
"""A decimal number, as a regular expression; no digit can belong to two of its parts, so that it stays linear."""

HYPOTHESIS, ACTION, POSTERIOR = "Hypothesis:", "Action:", "Posterior:"
"""What introduces each role's answer."""

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

ACT = """\
You act in this world:

<world>
{world}
</world>

Take the following as the whole truth about it:

<hypothesis>
{hypothesis}
</hypothesis>

This is what happened in the episode until now:

<episode>
{episode}
</episode>

Choose the action that earns the most over the rest of the episode if the hypothesis is true: what it pays at once and \
what it makes possible afterwards. Think first where that helps, then end with one line of this form:

Action: <one of the actions that the world allows>\
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
