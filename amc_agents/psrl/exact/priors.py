"""Priors that are text for a language model and exact for arithmetic: Beta, Dirichlet, uniform over a set.

`str(prior)` is the text, `parse_prior` reads it back, `observed` is the exact Bayesian update, `sample` draws a
hypothesis.
An LLM's posterior that keeps to the text can so be compared with the true one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from amc_agents.errors import ConfigurationError

_RESERVED = set("{},\n")


@dataclass(frozen=True, slots=True)
class Beta:
    """What is believed of a probability, such as an arm's mean.

    >>> str(Beta().observed(1).observed(1).observed(0))
    'Beta(3, 2)'
    """

    successes: float = 1.0
    """First parameter: 1 + the ones seen, where the prior is Beta(1, 1)."""
    failures: float = 1.0
    """Second parameter."""

    def __post_init__(self) -> None:
        _require_positive("Beta", (self.successes, self.failures))

    def __str__(self) -> str:
        return f"Beta({_number(self.successes)}, {_number(self.failures)})"

    @property
    def mean(self) -> float:
        """The expected probability."""
        return self.successes / (self.successes + self.failures)

    def observed(self, reward: float) -> Beta:
        """After a reward of 0 or 1. Raises `ConfigurationError` for any other."""
        if reward not in (0, 1):
            raise ConfigurationError(f"a Beta prior is of rewards 0 and 1, got {reward!r}: use another prior")
        return Beta(self.successes + reward, self.failures + 1 - reward)

    def sample(self, rng: np.random.Generator) -> float:
        """A probability."""
        return float(rng.beta(self.successes, self.failures))


@dataclass(frozen=True, slots=True)
class Dirichlet:
    """What is believed of the chances of several outcomes.

    >>> str(Dirichlet.even(("cave 1", "cave 2"), 0.5).observed("cave 2"))
    'Dirichlet(cave 1: 0.5, cave 2: 1.5)'
    """

    outcomes: tuple[str, ...]
    """Their names."""
    counts: tuple[float, ...]
    """The parameter of each: what it began with, plus how often it was seen."""

    def __post_init__(self) -> None:
        _require_names("Dirichlet", self.outcomes)
        _require_positive("Dirichlet", self.counts)
        if len(self.outcomes) != len(self.counts):
            raise ConfigurationError(f"{len(self.outcomes)} outcomes and {len(self.counts)} counts: give one for each")

    @classmethod
    def even(cls, outcomes: Sequence[str], concentration: float = 1.0) -> Dirichlet:
        """The same parameter for every outcome."""
        return cls(tuple(outcomes), (float(concentration),) * len(outcomes))

    def __str__(self) -> str:
        listed = zip(self.outcomes, self.counts, strict=True)
        return f"Dirichlet({', '.join(f'{outcome}: {_number(count)}' for outcome, count in listed)})"

    def observed(self, outcome: str) -> Dirichlet:
        """After an outcome was seen. Raises `ConfigurationError` for one that the prior does not know."""
        if outcome not in self.outcomes:
            raise ConfigurationError(f"{outcome!r} is none of the prior's outcomes: {', '.join(self.outcomes)}")
        listed = zip(self.outcomes, self.counts, strict=True)
        return Dirichlet(self.outcomes, tuple(count + (name == outcome) for name, count in listed))

    def sample(self, rng: np.random.Generator) -> dict[str, float]:
        """The chances of the outcomes."""
        return dict(zip(self.outcomes, rng.dirichlet(self.counts).tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class UniformOver:
    """One of these, all equally likely: a code, a word, the best arm, a reward.

    >>> str(UniformOver(("12", "13", "21")).given(lambda code: code[0] == "1"))
    'Uniform over {12, 13}'
    """

    items: tuple[str, ...]
    """What it may be."""

    def __post_init__(self) -> None:
        _require_names("UniformOver", self.items)

    def __str__(self) -> str:
        return f"Uniform over {{{', '.join(self.items)}}}"

    def given(self, possible: Callable[[str], bool]) -> UniformOver:
        """After something was seen that only these items explain. Raises `ConfigurationError` where none does."""
        left = tuple(item for item in self.items if possible(item))
        if not left:
            raise ConfigurationError(
                f"none of the {len(self.items)} items explains what was seen: the prior left out the truth"
            )
        return self if len(left) == len(self.items) else UniformOver(left)

    def observed(self, item: str) -> UniformOver:
        """After the item itself was seen."""
        return self.given(lambda other: other == item)

    def sample(self, rng: np.random.Generator) -> str:
        """One of the items."""
        return self.items[int(rng.integers(len(self.items)))]


Single = Beta | Dirichlet | UniformOver


@dataclass(frozen=True, slots=True)
class Independent:
    """Several unknowns by name, each with a prior of its own: one line of text for each.

    >>> print(Independent({"mean of arm A": Beta(), "mean of arm B": Beta()}).observed("mean of arm B", 0))
    mean of arm A: Beta(1, 1)
    mean of arm B: Beta(1, 2)
    """

    parts: Mapping[str, Single] = field(default_factory=dict)
    """By name, in the order in which they are told and sampled."""

    def __post_init__(self) -> None:
        if wrong := [name for name in self.parts if "\n" in name or name != name.strip() or not name]:
            raise ConfigurationError(f"an unknown's name is one line without spaces around it, got {wrong[0]!r}")

    def __str__(self) -> str:
        return "\n".join(f"{name}: {part}" for name, part in self.parts.items())

    def observed(self, name: str, outcome: float | str) -> Independent:
        """After one unknown showed an outcome."""
        part = self.parts[name]
        after = part.observed(float(outcome)) if isinstance(part, Beta) else part.observed(str(outcome))
        return Independent({**self.parts, name: after})

    def sample(self, rng: np.random.Generator) -> dict[str, float | str | dict[str, float]]:
        """A value for each unknown, drawn in their order."""
        return {name: part.sample(rng) for name, part in self.parts.items()}


Prior = Beta | Dirichlet | UniformOver | Independent


def parse_prior(text: str) -> Prior:
    """The prior whose text this is: `parse_prior(str(prior)) == prior`. Empty lines and spaces around are ignored.

    Raises:
        ConfigurationError: a line is not of a prior's form; the message shows it.
    """
    lines = [line for line in (line.strip() for line in text.splitlines()) if line]
    if len(lines) == 1 and (single := _parsed(lines[0])) is not None:
        return single
    parts = [_parsed_line(line) for line in lines]
    if len(dict(parts)) < len(parts) or not parts:
        raise ConfigurationError(f"{_EXPECTED}, each unknown once, got {text[:120]!r}")
    return Independent(dict(parts))


def _parsed_line(line: str) -> tuple[str, Single]:
    last_comma = line.rfind(",")
    comma_before = line.rfind(",", 0, max(last_comma, 0))
    for match in _OPENING.finditer(line):
        # A name may hold openings too. Those that cannot be the prior's are passed over without reading on from
        # each to the end of the line: a Beta has exactly one comma.
        begin, opening = match.end(), match[1]
        if not line.endswith(_CLOSING[opening]) or (opening == "Beta(" and not comma_before < begin < last_comma):
            continue
        if (part := _parsed(line[begin:])) is not None:
            return line[: match.start()], part
    raise ConfigurationError(f"{_EXPECTED}, got {line[:120]!r}")


def _parsed(text: str) -> Single | None:
    try:
        if match := re.fullmatch(r"Beta\(([^,]+),([^,]+)\)", text):
            return Beta(float(match[1]), float(match[2]))
        if match := re.fullmatch(r"Dirichlet\((.+)\)", text):
            pairs = [part.rpartition(":") for part in match[1].split(",")]
            return Dirichlet(tuple(name.strip() for name, _, _ in pairs), tuple(float(count) for *_, count in pairs))
    except ValueError as error:
        raise ConfigurationError(f"{_EXPECTED}, got {text[:120]!r}: {str(error)[:200]}") from error
    if match := re.fullmatch(r"Uniform over \{(.+)\}", text):
        return UniformOver(tuple(item.strip() for item in match[1].split(",")))
    return None


def _number(number: float) -> str:
    return repr(float(number)).removesuffix(".0")


def _require_positive(what: str, numbers: Sequence[float]) -> None:
    if not all(0 < number < float("inf") for number in numbers):
        raise ConfigurationError(f"the parameters of a {what} are above 0 and finite, got {list(numbers)}")


def _require_names(what: str, names: Sequence[str]) -> None:
    wrong = [name for name in names if not name or name != name.strip() or _RESERVED & set(name)]
    if wrong or not names or len(set(names)) != len(names):
        raise ConfigurationError(
            f"a {what} is over different names without commas, braces, line ends and spaces around them, got "
            f"{(wrong or list(names))[:5]}"
        )


_CLOSING = {"Beta(": ")", "Dirichlet(": ")", "Uniform over {": "}"}
_OPENING = re.compile(rf": +(?=({'|'.join(map(re.escape, _CLOSING))}))")

_EXPECTED = (
    "expected a line such as 'mean of arm A: Beta(1, 1)', 'next cave: Dirichlet(1: 0.5, 2: 0.5)' or "
    "'code: Uniform over {12, 21}'"
)
"""What `parse_prior` reads."""
