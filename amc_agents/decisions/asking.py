"""A model's answers in a form that was asked for: what cannot be read is asked for once more, then it is an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from amc_agents.decisions.reflection import Answers, asked
from amc_agents.errors import DecisionError
from amc_agents.quoting import quoted

T = TypeVar("T")


async def strictly(
    answers: Answers, prompts: Sequence[str], read: Sequence[Callable[[str], T | None]], what: str
) -> tuple[list[T], int]:
    """Answers that could be read, and the round trips that this took.

    Args:
        answers: asks a model.
        prompts: asked side by side.
        read: one per prompt; None where a text is not in the form that was asked for.
        what: is asked, for the messages.

    Raises:
        DecisionError: an answer could not be read, and neither could the second one.
        CriticError: the model failed.
    """
    texts = await asked(answers, prompts, what)
    found = [one(text) for one, text in zip(read, texts, strict=True)]
    wrong = [i for i, one in enumerate(found) if one is None]
    if not wrong:
        return [one for one in found if one is not None], 1
    again = await asked(answers, [prompts[i] + AGAIN.format(answer=texts[i]) for i in wrong], what)
    for i, text in zip(wrong, again, strict=True):
        found[i] = read[i](text)
        if found[i] is None:
            raise DecisionError(
                f"the {what} did not answer in the form that was asked for, twice: {quoted(texts[i], 60)}, then "
                f"{quoted(text, 60)}. Look at its prompt, and at the most tokens that it may write. It ended: "
                f"{quoted(prompts[i][-80:])}"
            )
    return [one for one in found if one is not None], 2


AGAIN = """

Your last answer was not in this form and could not be read:
---
{answer}
---
Answer again, in exactly the form that was asked for.\
"""
