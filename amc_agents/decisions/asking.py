"""Send prompts to a model concurrently: failures become `CriticError`, and unreadable answers are requested again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from amc_agents.errors import AmcError, CriticError, DecisionError
from amc_agents.quoting import cause_of, excerpt, quoted

T = TypeVar("T")

Answers = Callable[[Sequence[str]], Awaitable[Sequence[str]]]
"""Maps prompts to a model's answers, requested concurrently. It records its own usage."""


_MOST = 200
"""Characters of a provider's error that a message repeats."""


async def ask_all(answers: Answers, prompts: Sequence[str], role: str) -> Sequence[str]:
    """Return a model's answers, one per prompt.

    Args:
        answers: calls the model.
        prompts: may be empty; the model is then not called.
        role: name of the model's role, for error messages.

    Raises:
        CriticError: the model failed or returned the wrong number of answers.
    """
    if not prompts:
        return []
    try:
        texts = list(await answers(prompts))
    except AmcError:
        raise
    except Exception as error:  # Each provider package raises its own errors.
        detail = excerpt(f"{type(error).__name__}: {error}", _MOST)
        raise CriticError(f"the {role} failed: {detail}. Check its model's name, key and server") from cause_of(error)
    if len(texts) != len(prompts):
        raise CriticError(f"the {role} gave {len(texts)} answers to {len(prompts)} prompts")
    return texts


async def strictly(
    answers: Answers, prompts: Sequence[str], read: Sequence[Callable[[str], T | None]], role: str
) -> tuple[list[T], int]:
    """Ask for answers in a given form; an answer that cannot be parsed is requested once more.

    Args:
        answers: calls the model.
        prompts: requested concurrently.
        read: one parser per prompt; it returns None if the text is not in the requested form.
        role: name of the model's role, for error messages.

    Returns:
        The parsed answers, and the number of round trips (1 or 2).

    Raises:
        DecisionError: an answer could not be parsed twice in a row.
        CriticError: the model failed.
    """
    texts = await ask_all(answers, prompts, role)
    parsed = [parse(text) for parse, text in zip(read, texts, strict=True)]
    wrong = [i for i, value in enumerate(parsed) if value is None]
    if not wrong:
        return [value for value in parsed if value is not None], 1
    again = await ask_all(answers, [prompts[i] + AGAIN.format(answer=texts[i]) for i in wrong], role)
    for i, text in zip(wrong, again, strict=True):
        parsed[i] = read[i](text)
        if parsed[i] is None:
            raise DecisionError(
                f"the {role} did not answer in the requested form, twice: {quoted(texts[i], 60)}, then "
                f"{quoted(text, 60)}. Check its prompt and its limit of output tokens. The prompt ended: "
                f"{quoted(prompts[i][-80:], 200)}"
            )
    return [value for value in parsed if value is not None], 2


AGAIN = """

Your last answer was not in this form and could not be read:
---
{answer}
---
Answer again, in exactly the form that was asked for.\
"""
