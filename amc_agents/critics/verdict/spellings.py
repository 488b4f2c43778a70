"""The token sequences of the two verdict words, and the words' probabilities from those of the tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from amc_agents.critics.tokenizing import Tokenize
from amc_agents.critics.verdict.checkpoint import Words
from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Spellings:
    """The token sequences that write the two words."""

    good: tuple[Ids, ...]
    bad: tuple[Ids, ...]

    @classmethod
    def of(cls, words: Words, tokenize: Tokenize) -> Spellings:
        """Tokenize both words, with and without a space before them.

        Raises:
            ConfigurationError: the tokenizer cannot write a word, or a spelling of a word begins with a spelling of
                the other.
        """
        good, bad = (_spellings(word, tokenize) for word in words)
        for word, spellings in zip(words, (good, bad), strict=True):
            if not spellings:
                raise ConfigurationError(
                    f"the model's tokenizer has no tokens for the verdict word {quoted(word)}: choose words in its "
                    "vocabulary"
                )
        for left, right in product(good, bad):
            shorter = min(len(left), len(right))
            if left[:shorter] == right[:shorter]:
                raise ConfigurationError(
                    f"the verdict words {quoted(words[0])} and {quoted(words[1])} are ambiguous, because their tokens "
                    f"({list(left)}, {list(right)}) begin with one another: choose other words"
                )
        return cls(good, bad)

    @property
    def prefixes(self) -> tuple[Ids, ...]:
        """All proper prefixes of the spellings, starting with the empty sequence."""
        prefixes = (ids[:length] for ids in (*self.good, *self.bad) for length in range(len(ids)))
        return tuple(sorted(dict.fromkeys(prefixes), key=len))

    @property
    def token_ids(self) -> list[int]:
        """All tokens of the spellings."""
        return sorted({token for ids in (*self.good, *self.bad) for token in ids})

    def verdict(self, tables: Mapping[Ids, Mapping[int, float]]) -> tuple[float, float]:
        """Return (log p(GOOD), log p(BAD)) of a prompt.

        Args:
            tables: log-probabilities of `token_ids` after the prompt and each of `prefixes`.
        """

        def summed(spellings: Sequence[Ids]) -> float:
            paths = [sum(tables[ids[:n]][token] for n, token in enumerate(ids)) for ids in spellings]
            return float(np.logaddexp.reduce(paths))

        return summed(self.good), summed(self.bad)


def _spellings(word: str, tokenize: Tokenize) -> tuple[Ids, ...]:
    """Tokenize a word as a continuation, without and with a space before it."""
    unknown = _unknown(tokenize)
    context = tuple(tokenize(_CONTEXT))
    spellings: dict[Ids, None] = {}
    for text in (word.strip(), f" {word.strip()}"):
        # Some tokenizers prepend a space to every text, so the word is tokenized after a newline.
        whole = tuple(tokenize(_CONTEXT + text))
        ids = whole[len(context) :] if whole[: len(context)] == context else tuple(tokenize(text))
        if ids and unknown not in ids:
            spellings[ids] = None
    # The probability of a spelling includes that of spellings that begin with it.
    return tuple(ids for ids in spellings if not any(ids[:n] in spellings for n in range(1, len(ids))))


def _unknown(tokenize: Tokenize) -> int | None:
    """Return the token for unknown text, or None: two private-use characters with the same last token reveal it."""
    first, second = (tuple(tokenize(text))[-1:] for text in _PRIVATE_USE)
    return first[0] if first and first == second else None


_CONTEXT = "\n"
_PRIVATE_USE = ("\ue000", "\uf8ff")
