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
    return {kind for text in texts for kind in _kinds_in(text)}


def texts_of(trajectory: Trajectory) -> Iterator[str]:
    """Yield all texts of a trajectory."""
    yield trajectory.task.instruction
    for step in trajectory.steps:
        yield from (step.thought, step.action, step.observation)


def _kinds_in(text: str) -> Iterator[str]:
    if "@" in text and _EMAIL.search(text):
        yield "e-mail address"
    if "+" in text and _TELEPHONE.search(text):
        yield "telephone number"
    if any(_passes_luhn(re.sub(r"\D", "", match[0])) for match in _CARD.finditer(text)):
        yield "card number"
    if _IBAN.search(text):
        yield "bank account (IBAN)"
    if _KEY.search(text):
        yield "API key"


def _passes_luhn(digits: str) -> bool:
    """Return whether the check digit of a card number is right.

    >>> _passes_luhn("4111111111111111"), _passes_luhn("4111111111111112")
    (True, False)
    """
    doubled = [int(digit) * (2 if place % 2 else 1) for place, digit in enumerate(reversed(digits))]
    return sum(number - 9 if number > 9 else number for number in doubled) % 10 == 0


_EMAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}\.[\w.-]{2,}")
_TELEPHONE = re.compile(r"\+\d{1,3}[ ()/.-]{0,2}\d(?:[ ()/.-]?\d){6,12}\b")
_CARD = re.compile(r"(?<!\d)\d(?:[ -]?\d){12,18}(?!\d)")
_KEY = re.compile(  # of providers whose keys have a form of their own
    r"\b(?:sk-[\w-]{20,200}|gh[pousr]_\w{30,255}|hf_\w{30,60}|AKIA[0-9A-Z]{16}|AIza[\w-]{35}|xox[abprs]-[\w-]{10,200})"
)
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,4})?\b")
