"""Typed priors with a textual form: Beta, Dirichlet, and uniform over a set.

`str(prior)` is the text, `parse_prior` its inverse, `observed` the exact Bayesian update, and `sample` draws a
hypothesis, which has a text of its own (`hypothesis_text`). A language model's posterior in this form can be compared
with the true posterior, and its hypotheses can be checked (`impossible`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import excerpt, quoted

_RESERVED = set("{},\n")


@dataclass(frozen=True, slots=True)
class Beta:
    """Belief about a probability, such as an arm's mean.

    >>> str(Beta().observed(1).observed(1).observed(0))
    'Beta(3, 2)'
    """

    successes: float = 1.0
    """First parameter: 1 + the number of successes observed, from Beta(1, 1)."""
    failures: float = 1.0
    """Second parameter."""

    def __post_init__(self) -> None:
        _require_positive("Beta", (self.successes, self.failures))

    def __str__(self) -> str:
        return f"Beta({_number(self.successes)}, {_number(self.failures)})"

    @property
    def mean(self) -> float:
        """Expected probability."""
        return self.successes / (self.successes + self.failures)

    def observed(self, reward: float) -> Beta:
        """Return the posterior after a reward of 0 or 1. Raises `ConfigurationError` for any other reward."""
        if reward not in (0, 1):
            raise ConfigurationError(
                f"a Beta prior expects a reward of 0 or 1, got {quoted(reward)}: use another prior"
            )
        return Beta(self.successes + reward, self.failures + 1 - reward)

    def sample(self, rng: np.random.Generator) -> float:
        """Draw a probability."""
        return float(rng.beta(self.successes, self.failures))


@dataclass(frozen=True, slots=True)
class Dirichlet:
    """Belief about the probabilities of several outcomes.

    >>> str(Dirichlet.even(("cave 1", "cave 2"), 0.5).observed("cave 2"))
    'Dirichlet(cave 1: 0.5, cave 2: 1.5)'
    """

    outcomes: tuple[str, ...]
    """Names of the outcomes."""
    counts: tuple[float, ...]
    """Parameter of each outcome: its prior count plus the number of observations."""

    def __post_init__(self) -> None:
        _require_names("Dirichlet", self.outcomes)
        _require_positive("Dirichlet", self.counts)
        if len(self.outcomes) != len(self.counts):
            raise ConfigurationError(f"{len(self.outcomes)} outcomes and {len(self.counts)} counts: give one for each")

    @classmethod
    def even(cls, outcomes: Sequence[str], concentration: float = 1.0) -> Dirichlet:
        """Return a prior with the same parameter for every outcome."""
        return cls(tuple(outcomes), (float(concentration),) * len(outcomes))

    def __str__(self) -> str:
        listed = zip(self.outcomes, self.counts, strict=True)
        return f"Dirichlet({', '.join(f'{outcome}: {_number(count)}' for outcome, count in listed)})"

    def observed(self, outcome: str) -> Dirichlet:
        """Return the posterior after an outcome. Raises `ConfigurationError` for an unknown outcome."""
        if outcome not in self.outcomes:
            raise ConfigurationError(
                f"{quoted(outcome)} is not an outcome of the prior: expected one of {', '.join(self.outcomes)}"
            )
        listed = zip(self.outcomes, self.counts, strict=True)
        return Dirichlet(self.outcomes, tuple(count + (name == outcome) for name, count in listed))

    def sample(self, rng: np.random.Generator) -> dict[str, float]:
        """Draw the probabilities of the outcomes."""
        return dict(zip(self.outcomes, rng.dirichlet(self.counts).tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class UniformOver:
    """Belief that all items are equally likely: codes, words, arms, rewards.

    >>> str(UniformOver(("12", "13", "21")).given(lambda code: code[0] == "1"))
    'Uniform over {12, 13}'
    """

    items: tuple[str, ...]
    """The possible items."""

    def __post_init__(self) -> None:
        _require_names("UniformOver", self.items)

    def __str__(self) -> str:
        return f"Uniform over {{{', '.join(self.items)}}}"

    def given(self, possible: Callable[[str], bool]) -> UniformOver:
        """Return the posterior after an observation that only the `possible` items explain.

        Raises:
            ConfigurationError: no item is possible.
        """
        remaining = tuple(item for item in self.items if possible(item))
        if not remaining:
            raise ConfigurationError(
                f"none of the {len(self.items)} items explains the observation: the prior excludes the truth"
            )
        return self if len(remaining) == len(self.items) else UniformOver(remaining)

    def observed(self, item: str) -> UniformOver:
        """Return the posterior after the item itself was observed."""
        return self.given(lambda other: other == item)

    def sample(self, rng: np.random.Generator) -> str:
        """Draw an item."""
        return self.items[int(rng.integers(len(self.items)))]


Single = Beta | Dirichlet | UniformOver


@dataclass(frozen=True, slots=True)
class Independent:
    """Independent beliefs about several named unknowns, with a line of text for each.

    >>> print(Independent({"mean of arm A": Beta(), "mean of arm B": Beta()}).observed("mean of arm B", 0))
    mean of arm A: Beta(1, 1)
    mean of arm B: Beta(1, 2)
    """

    parts: Mapping[str, Single] = field(default_factory=dict)
    """Priors by name, in the order of the text and of sampling."""

    def __post_init__(self) -> None:
        if wrong := [name for name in self.parts if "\n" in name or name != name.strip() or not name]:
            raise ConfigurationError(
                f"expected the name of an unknown as one line without spaces around it, got {quoted(wrong[0])}"
            )

    def __str__(self) -> str:
        return "\n".join(f"{name}: {part}" for name, part in self.parts.items())

    def observed(self, name: str, outcome: float | str) -> Independent:
        """Return the posterior after an outcome of the named unknown."""
        part = self.parts[name]
        after = part.observed(float(outcome)) if isinstance(part, Beta) else part.observed(str(outcome))
        return Independent({**self.parts, name: after})

    def sample(self, rng: np.random.Generator) -> dict[str, float | str | dict[str, float]]:
        """Draw a value for each unknown, in order."""
        return {name: part.sample(rng) for name, part in self.parts.items()}


Prior = Beta | Dirichlet | UniformOver | Independent


def parse_prior(text: str) -> Prior:
    """Parse a prior: `parse_prior(str(prior)) == prior`. Empty lines and surrounding spaces are ignored.

    Raises:
        ConfigurationError: a line does not have the form of a prior. The message shows the line.
    """
    lines = [line for line in (line.strip() for line in text.splitlines()) if line]
    if len(lines) == 1 and (single := _parsed(lines[0])) is not None:
        return single
    parts = [_parsed_line(line) for line in lines]
    if len(dict(parts)) < len(parts) or not parts:
        raise ConfigurationError(f"{_EXPECTED}, each unknown once, got {quoted(text, 120)}")
    return Independent(dict(parts))


def hypothesis_text(hypothesis: Any) -> str:
    """Format a draw of a typed prior as text, without loss.

    >>> print(hypothesis_text({"mean of arm A": 0.25}))
    {
     "mean of arm A": 0.25
    }
    """
    return hypothesis if isinstance(hypothesis, str) else json.dumps(hypothesis, indent=1, ensure_ascii=False)


def read_hypothesis(text: str) -> Any:
    """Parse the text of `hypothesis_text`.

    Raises:
        ConfigurationError: the text looks like a JSON object but cannot be parsed.
    """
    if not text.startswith("{"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"expected a hypothesis as a JSON object, got {quoted(text, 120)}: {excerpt(str(error), 120)}"
        ) from error


def impossible(posterior: str, hypothesis: str) -> str:
    """Return why a hypothesis is impossible under a typed prior's text; empty if it is possible. A sampler's `Check`.

    >>> impossible("Uniform over {12, 21}", "13")
    "'13' is not among the 2 possible items"
    """
    try:
        prior, drawn = parse_prior(posterior), read_hypothesis(hypothesis)
    except ConfigurationError as error:
        return str(error)
    if not isinstance(prior, Independent):
        return _impossible(prior, drawn if isinstance(prior, UniformOver | Dirichlet) else _as_number(drawn))
    if not isinstance(drawn, dict) or set(drawn) != set(prior.parts):
        return f"expected a value for each of {', '.join(prior.parts)}"
    errors = {name: _impossible(part, drawn[name]) for name, part in prior.parts.items()}
    return "; ".join(f"{name}: {error}" for name, error in errors.items() if error)


def _impossible(prior: Single, drawn: Any) -> str:
    match prior:
        case UniformOver():
            return (
                ""
                if drawn in prior.items
                else f"{quoted(drawn, 200)} is not among the {len(prior.items)} possible items"
            )
        case Beta():
            return (
                ""
                if isinstance(drawn, int | float) and 0 <= drawn <= 1
                else f"{quoted(drawn, 200)} is not between 0 and 1"
            )
        case Dirichlet():
            known = isinstance(drawn, dict) and set(drawn) == set(prior.outcomes)
            numeric = known and all(isinstance(share, int | float) and 0 <= share <= 2 for share in drawn.values())
            if numeric and abs(sum(drawn.values()) - 1) < _ROUNDING:
                return ""
            return (
                f"{quoted(drawn, 200)} does not give each of {', '.join(prior.outcomes)} a probability, with a sum of 1"
            )


def _as_number(text: Any) -> Any:
    try:
        return float(text)
    except (TypeError, ValueError):
        return text


def _parsed_line(line: str) -> tuple[str, Single]:
    last_comma = line.rfind(",")
    comma_before = line.rfind(",", 0, max(last_comma, 0))
    for match in _OPENING.finditer(line):
        # A name may contain openings too. Checking for the closing and, for a Beta, for its only comma skips them
        # without scanning to the end of the line from each, so that parsing takes linear time.
        begin, opening = match.end(), match[1]
        if not line.endswith(_CLOSING[opening]) or (opening == "Beta(" and not comma_before < begin < last_comma):
            continue
        if (part := _parsed(line[begin:])) is not None:
            return line[: match.start()], part
    raise ConfigurationError(f"{_EXPECTED}, got {quoted(line, 120)}")


def _parsed(text: str) -> Single | None:
    try:
        if match := re.fullmatch(r"Beta\(([^,]+),([^,]+)\)", text):
            return Beta(float(match[1]), float(match[2]))
        if match := re.fullmatch(r"Dirichlet\((.+)\)", text):
            pairs = [part.rpartition(":") for part in match[1].split(",")]
            return Dirichlet(tuple(name.strip() for name, _, _ in pairs), tuple(float(count) for *_, count in pairs))
    except ValueError as error:
        raise ConfigurationError(f"{_EXPECTED}, got {quoted(text)}: {excerpt(str(error), 80)}") from error
    if match := re.fullmatch(r"Uniform over \{(.+)\}", text):
        return UniformOver(tuple(item.strip() for item in match[1].split(",")))
    return None


def _number(number: float) -> str:
    return repr(float(number)).removesuffix(".0")


def _require_positive(kind: str, numbers: Sequence[float]) -> None:
    if not all(0 < number < float("inf") for number in numbers):
        raise ConfigurationError(f"expected positive and finite parameters of a {kind}, got {list(numbers)}")


def _require_names(kind: str, names: Sequence[str]) -> None:
    wrong = [name for name in names if not name or name != name.strip() or _RESERVED & set(name)]
    if wrong or not names or len(set(names)) != len(names):
        raise ConfigurationError(
            f"expected a {kind} over different names without commas, braces, line breaks and surrounding spaces, got "
            f"{quoted((wrong or list(names))[:5])}"
        )


_CLOSING = {"Beta(": ")", "Dirichlet(": ")", "Uniform over {": "}"}
_OPENING = re.compile(rf": +(?=({'|'.join(map(re.escape, _CLOSING))}))")

_EXPECTED = (
    "expected a line such as 'mean of arm A: Beta(1, 1)', 'next cave: Dirichlet(1: 0.5, 2: 0.5)' or "
    "'code: Uniform over {12, 21}'"
)
"""Forms that `parse_prior` accepts."""
_ROUNDING = 1e-3
"""Tolerance for the sum of probabilities, which language models round."""
