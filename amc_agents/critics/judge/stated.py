"""Read the number that a judge states, in the forms that chat models write.

The forms are those that leave no doubt: the requested line with any markup, case and spaces, with a sentence before or
after it, as a fraction or percentage, as a JSON object, in a code fence, or alone. A judge may quote a score from the
record that it judges, so an answer that states two different numbers is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any


def stated_number(opening: str, *, best: float = 1.0, whole: bool = False) -> Callable[[str], float]:
    r"""Return a parser of the number that an answer states after `opening`.

    >>> read = stated_number("Score:")
    >>> [read(text) for text in ("It went well.\n**score: 0.7**", "Score: 7/10\nIt is right.", '{"score": 0.7}')]
    [0.7, 0.7, 0.7]

    Args:
        opening: text before the number, such as "Score:"; in an object, the key.
        best: the best number: what the second number of a fraction such as 0.7/1 stands for.
        whole: whether the number must be an integer. A fraction then needs `best` as its second number.
    """
    label = re.sub(r"^the | is$|:$", "", opening.strip(), flags=re.IGNORECASE)
    words = r"\s+".join(map(re.escape, label.split()))
    begins = re.compile(
        rf"(?:[-•]\s)?(?:(?:the|my|final|overall)\s)*{words}\s?(?:is\b)?\s?[:=]?\s?(?=[-+.]?[0-9])", re.I
    )
    keys = {_key(label), _key(label).split()[-1]}
    kind = "an integer" if whole else "a decimal number"
    form = ValueError(f'the last line must be "{opening} NUMBER" and nothing else, where NUMBER is {kind}')

    def number(text: str, *, alone: bool) -> float:
        match = _NUMBER.match(text)
        rest = text[match.end() :] if match else ""
        if match is None or (rest not in ("", ".") if alone else _GOES_ON.fullmatch(rest) is None):
            raise form
        value, of = float(match[1]), match[2]
        if match[3]:
            of = "100"
        if of is not None and float(of) != best:
            if whole or not float(of):
                raise form
            value = value * best / float(of)
        if whole and not value.is_integer():
            raise form
        return value

    def parse(answer: str) -> float:
        text = without_reasoning(answer)
        found = {
            number(str(value), alone=True) for key, value in (json_object(text) or {}).items() if _key(key) in keys
        }
        lines = plain_lines(text)
        starts = [(line, match) for line in lines if (match := begins.match(line))]
        found |= {number(line[match.end() :], alone=False) for line, match in starts}
        if not found and len(lines) == 1:
            found = {number(lines[0], alone=True)}
        if len(found) > 1:
            raise ValueError(f'only the last line may start with "{opening}": the answer states different numbers')
        if not found:
            raise form
        return found.pop()

    return parse


def plain_lines(answer: str) -> list[str]:
    """Return the lines of an answer that are not empty, without reasoning and markup, with single plain spaces."""
    lines = (" ".join(_MARKUP.sub("", line).split()) for line in without_reasoning(answer).splitlines())
    return [line for line in lines if line]


def without_reasoning(answer: str) -> str:
    """Return an answer without the reasoning that some servers leave in it, between `<think>` and `</think>`."""
    text = _REASONED.split(answer)[-1]
    return "" if _REASONS.match(text) else text  # Cut off in its reasoning: it quotes, and has not answered.


def json_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object in a text, such as one in a code fence; None if there is none."""
    begin, end = text.find("{"), text.rfind("}")
    try:
        found = json.loads(text[begin : end + 1]) if 0 <= begin < end else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _key(text: str) -> str:
    return text.casefold().replace("_", " ").strip()


_REASONED = re.compile("</(?:think|thinking|thought|reasoning)>", re.I)
_REASONS = re.compile(r"\s*<(?:think|thinking|thought|reasoning)>", re.I)
_MARKUP = re.compile("[*`#$\u200b\ufeff]|__")
_NUMBER = re.compile(
    r"(-?(?:[0-9]{1,9}(?:\.[0-9]+)?|\.[0-9]+))(?:\s?(?:/|out of)\s?([0-9]{1,9}(?:\.[0-9]+)?)|\s?(%))?", re.I
)
_GOES_ON = re.compile(r"[.]?(?:\s?[-\u2013\u2014(;,.:][^0-9]*)?", re.I)
"""What may follow the number on its line: no other number, which would make a range or a second score of it."""
