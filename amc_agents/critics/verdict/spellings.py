"""How a model's tokenizer writes the two verdict words, and their probabilities from those of the tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from amc_agents.critics.tokenizing import Tokenize
from amc_agents.critics.verdict.checkpoint import Words
from amc_agents.errors import ConfigurationError

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Spellings:
    """The token sequences that write the two words."""

    good: tuple[Ids, ...]
    bad: tuple[Ids, ...]

    @classmethod
    def of(cls, words: Words, tokenize: Tokenize) -> Spellings:
        """As the tokenizer writes them, with and without a space before them.

        Raises:
            ConfigurationError: it cannot write one of them, or they begin with the same whole spelling.
        """
        good, bad = (_spellings(word, tokenize) for word in words)
        for word, found in zip(words, (good, bad), strict=True):
            if not found:
                raise ConfigurationError(
                    f"the model's tokenizer has no tokens for the verdict word {word!r}: choose words that it knows"
                )
        for one in good:
            for other in bad:
                short = min(len(one), len(other))
                if one[:short] == other[:short]:
                    raise ConfigurationError(
                        f"the verdict words {words[0]!r} and {words[1]!r} cannot be told apart: in tokens one "
                        f"begins with the other ({list(one)}, {list(other)})"
                    )
        return cls(good, bad)

    @property
    def prefixes(self) -> tuple[Ids, ...]:
        """What may stand before a token of a spelling: the empty sequence first."""
        every = (ids[:length] for ids in (*self.good, *self.bad) for length in range(len(ids)))
        return tuple(sorted(dict.fromkeys(every), key=len))

    @property
    def token_ids(self) -> list[int]:
        """Every token of a spelling."""
        return sorted({token for ids in (*self.good, *self.bad) for token in ids})

    def verdict(self, tables: Mapping[Ids, Mapping[int, float]]) -> tuple[float, float]:
        """(log p(GOOD), log p(BAD)) of one prompt, from the log-probabilities after each prefix."""

        def summed(spellings: Sequence[Ids]) -> float:
            paths = [sum(tables[ids[:n]][token] for n, token in enumerate(ids)) for ids in spellings]
            return float(np.logaddexp.reduce(paths))

        return summed(self.good), summed(self.bad)


def _spellings(word: str, tokenize: Tokenize) -> tuple[Ids, ...]:
    """How a word is written as a continuation, without and with a space before it."""
    unknown = _unknown(tokenize)
    context = tuple(tokenize(_CONTEXT))
    found: dict[Ids, None] = {}
    for text in (word.strip(), f" {word.strip()}"):
        # Some tokenizers put a space before whatever they are given: so it is read off behind a line's end.
        whole = tuple(tokenize(_CONTEXT + text))
        ids = whole[len(context) :] if whole[: len(context)] == context else tuple(tokenize(text))
        if ids and unknown not in ids:
            found[ids] = None
    # A spelling that begins with another one is a part of it.
    return tuple(ids for ids in found if not any(ids[:n] in found for n in range(1, len(ids))))


def _unknown(tokenize: Tokenize) -> int | None:
    """The token that stands for whatever the tokenizer does not know: two private characters end in the same one."""
    ends = {tuple(tokenize(text))[-1:] for text in _PRIVATE}
    only = ends.pop()
    return only[0] if not ends and only else None


_CONTEXT = "\n"
_PRIVATE = ("\ue000", "\uf8ff")
