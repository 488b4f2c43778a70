"""Hints of personal data in texts: a few patterns, to remind of redaction, not to replace a review."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from amc_agents.types import Trajectory


def personal_data(texts: Iterable[str]) -> set[str]:
    """Return the kinds of personal data that texts seem to contain.

    >>> sorted(personal_data(["Write to ann@example.org or call +49 30 1234567.", "Order 12345"]))
    ['e-mail address', 'telephone number']
    """
    # No pattern goes on in another line.
    return set(_kinds_in("\n".join(texts)))


def texts_of(trajectory: Trajectory) -> Iterator[str]:
    """Yield all texts of a trajectory."""
    yield trajectory.task.instruction
    for step in trajectory.steps:
        yield from (step.thought, step.action, step.observation)


def _kinds_in(text: str) -> Iterator[str]:
    if _EMAIL.search(text):
        yield "e-mail address"
    if _TELEPHONE.search(text):
        yield "telephone number"
    if any(_passes_luhn(re.sub(r"\D", "", match[0])) for match in _CARD.finditer(text)):
        yield "card number"
    if _IBAN.search(text):
        yield "bank account (IBAN)"
    if any(begin in text and key.search(text) for begin, key in _KEYS):
        yield "API key"


def _passes_luhn(digits: str) -> bool:
    """Return whether the check digit of a card number is right.

    >>> _passes_luhn("4111111111111111"), _passes_luhn("4111111111111112")
    (True, False)
    """
    doubled = [int(digit) * (2 if place % 2 else 1) for place, digit in enumerate(reversed(digits))]
    return sum(number - 9 if number > 9 else number for number in doubled) % 10 == 0


# Each begins with what is rare in a text and looks back from there: a search that begins with an assertion is slow.
_EMAIL = re.compile(r"@(?<=[\w.+-]@)[\w-]{1,63}\.[\w.-]{2,}")
_TELEPHONE = re.compile(r"\+\d{1,3}[ ()/.-]{0,2}\d(?:[ ()/.-]?\d){6,12}\b")
_CARD = re.compile(r"[0-9](?<![0-9]{2})(?:[ -]?[0-9]){12,18}(?![0-9])")
_KEYS = [  # of providers whose keys have a form of their own
    (begin, re.compile(begin + rf"(?<!\w{begin})" + rest))
    for begins, rest in (
        (("sk-",), r"[\w-]{20,200}"),
        (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"\w{30,255}"),
        (("hf_",), r"\w{30,60}"),
        (("AKIA",), r"[0-9A-Z]{16}"),
        (("AIza",), r"[\w-]{35}"),
        (("xoxa-", "xoxb-", "xoxp-", "xoxr-", "xoxs-"), r"[\w-]{10,200}"),
    )
    for begin in begins
]
_IBAN = re.compile(r"[A-Z][A-Z]\d{2}(?<!\w.{4})(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,4})?\b")
