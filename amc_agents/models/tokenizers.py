"""Tokenizers: only a template's words become special tokens, whatever an agent or a world writes.

Text from an agent or a world stays text, even if it spells a role token. A `Template` fills it into a `Segment`, which
records the parts that come from the template, and a `TemplateTokenizer` tokenizes the segment with any tokenizer: a
model folder's (`TokenizerFile`), the embedded models' word-level tokenizer (`WordTokenizer`), or one of transformers.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.quoting import excerpt, quoted

if TYPE_CHECKING:
    from tokenizers import Tokenizer


NAME = "tokenizer.json"
_SURROGATE = re.compile("[\ud800-\udfff]")


class TokenizerFile:
    """The tokenizer of a model folder. Safe to share between threads.

    Args:
        path: the `tokenizer.json`.

    Raises:
        CheckpointError: the file is missing or is not a tokenizer.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tokenizer = _load(path)
        # Whether special tokens count as text is a setting of a tokenizer, so each of the two ways has its own.
        self._text_only = _load(path)
        self._text_only.encode_special_tokens = True
        added = self._tokenizer.get_added_tokens_decoder()
        self.special = {token.content: number for number, token in added.items() if token.special}
        """Ids of the special tokens by their text."""
        self.unknown_id = _unknown_id(self._tokenizer)
        """The token for unknown words; None for a tokenizer that can encode any text."""
        self._forbidden = frozenset(self.special.values()) - {self.unknown_id}

    @property
    def model(self) -> Any:
        """The model of the `tokenizers` library."""
        return self._tokenizer.model

    def encode(self, text: str) -> list[int]:
        """Token ids; a special token that is spelled out in the text becomes that token."""
        return _encode(self._tokenizer, text)

    def encode_untrusted(self, text: str) -> list[int]:
        """Token ids, without special tokens; a special token that is spelled out in the text is encoded as text."""
        ids = _encode(self._text_only, text)
        if self.unknown_id is None or self._forbidden.isdisjoint(ids):
            return ids
        # A word-level vocabulary contains the special tokens too, so a word may be spelled like a special token.
        return [self.unknown_id if token in self._forbidden else token for token in ids]

    def decode(self, ids: list[int], *, skip_special: bool = True) -> str:
        """The text of token ids."""
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special)

    def vocabulary(self) -> dict[str, int]:
        """Ids of all tokens by their text, special tokens included."""
        return self._tokenizer.get_vocab(with_added_tokens=True)


def _load(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    if not path.is_file():
        raise CheckpointError(f"{path} does not exist: expected the model's tokenizer there")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain `Exception`
        raise CheckpointError(f"{path} is not a tokenizer: {excerpt(str(error))}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _unknown_id(tokenizer: Tokenizer) -> int | None:
    model: Any = tokenizer.model
    if getattr(model, "unk_token", None):
        return tokenizer.token_to_id(model.unk_token)
    return getattr(model, "unk_id", None)


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    # The library accepts no lone surrogates, which JSON may contain ("\ud800").
    text = text if text.isascii() else _SURROGATE.sub("\ufffd", text)
    return tokenizer.encode(text, add_special_tokens=False).ids


USER, ASSISTANT, END = "<|user|>", "<|assistant|>", "<|end|>"
_REMEMBERED_TEXTS = 50_000


class WordTokenizer:
    """Convert text to token ids and back. Words carry their own leading space.

    Args:
        file: a word-level tokenizer with the special tokens `<|user|>`, `<|assistant|>` and `<|end|>`.

    Raises:
        CheckpointError: the tokenizer is of another kind.
    """

    def __init__(self, file: TokenizerFile) -> None:
        kind = type(file.model).__name__
        if kind != "WordLevel":
            raise CheckpointError(f"{file.path}: expected a WordLevel tokenizer, got {quoted(kind)}")
        missing = {USER, ASSISTANT, END, file.model.unk_token} - file.special.keys()
        if missing or file.unknown_id is None:
            raise CheckpointError(f"{file.path}: the tokenizer lacks the special tokens {sorted(missing)}")
        self.vocabulary = file.vocabulary()
        """Ids of all tokens by their text."""
        self.special_ids = frozenset(file.special.values())
        self.end_id = file.special[END]
        self.unknown_id = file.unknown_id
        self._user, self._assistant = file.special[USER], file.special[ASSISTANT]
        self._file = file
        self._words = {number: word for word, number in self.vocabulary.items()}
        # The texts of a dialogue are encoded again with each turn.
        self._encode = lru_cache(_REMEMBERED_TEXTS)(file.encode)
        self._encode_untrusted = lru_cache(_REMEMBERED_TEXTS)(file.encode_untrusted)

    @classmethod
    def from_folder(cls, folder: str | Path) -> WordTokenizer:
        """Read a model folder's `tokenizer.json`. Raises `CheckpointError`."""
        return cls(TokenizerFile(Path(folder) / NAME))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of `text`; special tokens spelled out in it become themselves, unless `special` is False."""
        return list(self._encode(text) if special else self._encode_untrusted(text))

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of `ids`; special tokens are left out unless `skip_special` is False."""
        return self._file.decode(list(ids), skip_special=skip_special)

    def token(self, token_id: int) -> str:
        """The text of one token, special ones included."""
        return self._words[token_id]

    def encode_chat(self, messages: Iterable[tuple[str, str]], *, add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a dialogue by the folder's chat template; message contents cannot produce special tokens.

        Args:
            messages: (role, content); every role but "assistant" is written as the user.
            add_generation_prompt: end with the token after which the assistant speaks.
        """
        ids: list[int] = []
        for role, content in messages:
            if role == "assistant":
                ids += (self._assistant, *self._encode_untrusted(content), self.end_id)
            else:
                ids += (self._user, *self._encode_untrusted(content))
        if add_generation_prompt:
            ids.append(self._assistant)
        return ids


Tokenize = Callable[[str], Sequence[int]]
"""Maps the text of a segment to token ids, without automatic special tokens."""
MOST_UNKNOWN = 0.05
"""Share of unknown words above which a model cannot read a text."""


class Segment(str):
    """A text in pieces: the template's words at even positions, filled-in text at odd positions.

    Segments are equal if their pieces are equal: the same text in different pieces has a different meaning.
    """

    pieces: tuple[str, ...]

    def __new__(cls, *pieces: str) -> Segment:
        """Join the pieces."""
        segment = super().__new__(cls, "".join(pieces))
        segment.pieces = pieces
        return segment

    def __eq__(self, other: object) -> bool:
        """Compare pieces with a segment, and text with a plain string."""
        return self.pieces == other.pieces if isinstance(other, Segment) else str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        """Negate `__eq__`, since `str` defines `__ne__`, too."""
        return not self == other

    __hash__ = str.__hash__

    def __reduce__(self) -> tuple[type[Segment], tuple[str, ...]]:
        """Support pickle and copy."""
        return Segment, self.pieces


class Template(NamedTuple):
    """A text with fields. Fields are plain names, without formats or attributes."""

    words: tuple[str, ...]
    """The text before each field, and the text after the last field."""
    fields: tuple[str, ...]
    """Names of the fields, in order."""

    @classmethod
    def parse(cls, text: str, what: str) -> Template:
        """Parse a template such as `"{turn}<|end|>{observation}"`. A literal brace is doubled.

        Args:
            text: the template.
            what: the template's name, for the message.

        Raises:
            ConfigurationError: a brace is unbalanced, or a field is more than a name (`{turn:>9}`, `{turn.x}`).
        """
        return _parsed(text, what)

    def fill(self, ending: str = "", **texts: str) -> Segment:
        """Fill in the fields, and append `ending` to the template's words."""
        *before, last = self.words
        filled = (piece for words, field in zip(before, self.fields, strict=True) for piece in (words, texts[field]))
        return Segment(*filled, last + ending)

    def wrote(self, text: str, ending: str = "") -> bool:
        """True if a text can come from the template: it contains the template's words in order.

        The search takes linear time, unlike a regular expression.
        """
        first, *between, last = self.words
        at = len(first)
        for words in between:
            if (start := text.find(words, at)) < 0:
                return False
            at = start + len(words)
        last += ending
        return text.startswith(first) and text.endswith(last) and at + len(last) <= len(text)


@lru_cache(maxsize=64)
def _parsed(text: str, what: str) -> Template:
    words, fields = [""], []
    try:
        parts = list(string.Formatter().parse(text))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{excerpt(what, 100)}: {quoted(text, 100)} is not a template ({error}): double a literal brace"
        ) from error
    for before, field, layout, conversion in parts:
        words[-1] += before
        if field is None:
            continue
        if layout or conversion or not field.isidentifier():
            raise ConfigurationError(
                f"{excerpt(what, 100)}: expected fields that are plain names, such as {{turn}}, got "
                f"{quoted(field, 40)} with the format {quoted(layout or '', 40)} and the conversion "
                f"{quoted(conversion)}: formats and attributes are refused"
            )
        fields.append(field)
        words.append("")
    return Template(tuple(words), tuple(fields))


def segments_to_json(texts: Iterable[str]) -> list[str | list[str]]:
    """Convert texts to plain values: a segment to the list of its pieces, any other text to itself."""
    return [list(text.pieces) if isinstance(text, Segment) else text for text in texts]


def segments_from_json(values: Iterable[str | list[str]]) -> tuple[str, ...]:
    """Restore from `segments_to_json`."""
    return tuple(value if isinstance(value, str) else Segment(*value) for value in values)


class UnknownWords(NamedTuple):
    """Unknown words in texts. A tokenizer without a token for unknown words counts no words at all."""

    unknown: int
    words: int
    example: str
    """An unknown word."""

    @property
    def too_many(self) -> bool:
        """True if the model cannot read the texts."""
        return self.unknown > MOST_UNKNOWN * self.words

    @property
    def share(self) -> float:
        """Share of the words that are unknown."""
        return self.unknown / max(self.words, 1)

    def __str__(self) -> str:
        example = f"{quoted(self.example, 40)} (at most {MOST_UNKNOWN:.0%})"
        return f"{self.share:.0%} of the words are unknown to it, such as {example}"


class TemplateTokenizer:
    """A `Tokenize` that makes special tokens of the template's words only.

    A plain string counts as template. A segment without forged special tokens gets exactly the ids of its text, so that
    a model reads in use what it read in training.

    Args:
        tokenize: turns special tokens that a text spells out into special tokens.
        plain: treats them as ordinary text.
        special_ids: the special tokens, except the token for unknown words, which ordinary text may contain.
        unknown_id: the token for unknown words; None: the tokenizer has no such token.
    """

    def __init__(
        self, tokenize: Tokenize, plain: Tokenize, special_ids: Collection[int], unknown_id: int | None = None
    ) -> None:
        self._tokenize, self._plain = tokenize, plain
        self._special_ids, self._unknown_id = frozenset(special_ids) - {unknown_id}, unknown_id
        self._written: dict[str, list[int]] = {}
        self._words = lru_cache(maxsize=50_000, typed=True)(self._counted)

    @classmethod
    def of_transformers(cls, tokenizer: Any) -> TemplateTokenizer:
        """Wrap a `transformers` tokenizer, fast or slow."""

        def ids(text: str, **options: bool) -> list[int]:
            return list(tokenizer(text, add_special_tokens=False, **options)["input_ids"])

        special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
        return cls(ids, lambda text: ids(text, split_special_tokens=True), special, tokenizer.unk_token_id)

    @classmethod
    def of_words(cls, tokenizer: WordTokenizer) -> TemplateTokenizer:
        """Wrap the tokenizer of the embedded models."""
        plain = partial(tokenizer.encode, special=False)
        return cls(tokenizer.encode, plain, tokenizer.special_ids, tokenizer.unknown_id)

    def __call__(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        ids = list(self._tokenize(str(text)))
        if not isinstance(text, Segment):
            return ids
        expected = [token for words in text.pieces[::2] for token in self._special(words)]
        return ids if self._among(ids) == expected else self._apart(text)

    def unknown_words(self, texts: Iterable[str]) -> UnknownWords:
        """Count the unknown words of texts; in segments, template words are ignored."""
        unknown = words = 0
        example = ""
        for text in texts:
            unknown_here, words_here = self._words(text)
            unknown, words = unknown + unknown_here, words + words_here
            if unknown_here and not example:
                example = next(filter(None, map(self._unknown_word, _pieces(text))), "")
        return UnknownWords(unknown, words, example)

    def unknown_examples(self, texts: Iterable[str], most: int) -> list[str]:
        """Return up to `most` different unknown words of texts, in their order."""
        pieces = (piece for text in texts if self._words(text)[0] for piece in _pieces(text))
        words = (word for piece in pieces for word in piece.split() if self._unknown_id in self._plain(f" {word}"))
        examples: dict[str, None] = {}
        for word in words:
            examples[word] = None
            if len(examples) == most:
                break
        return list(examples)

    def _counted(self, text: str) -> tuple[int, int]:
        """(unknown, all) words of a text. Consecutive unknown tokens count as one word.

        A phrase of the vocabulary may begin in the template and end in a piece ("Action: turn left"), so that the piece
        alone is unknown but the whole text is not.
        """
        unknown = words = 0
        for piece in _pieces(text) if self._unknown_id is not None else ():
            known = [token != self._unknown_id for token in self._plain(piece)]
            starts = sum(not now and before for before, now in pairwise([True, *known]))
            unknown, words = unknown + starts, words + starts + sum(known)
        in_context = sum(token == self._unknown_id for token in self(text)) if unknown else 0
        return min(unknown, in_context), words

    def _unknown_word(self, text: str) -> str:
        return next((word for word in text.split() if self._unknown_id in self._plain(f" {word}")), "")

    def _apart(self, text: Segment) -> list[int]:
        """Ids of a segment with forged special tokens, which are tokenized as ordinary text."""
        ids: list[int] = []
        plain = ""
        for position, piece in enumerate(text.pieces):
            if position % 2 or not self._special(piece):
                plain += piece
                continue
            ids += [*(self._plain(plain) if plain else ()), *self._tokenize(piece)]
            plain = ""
        return ids + list(self._plain(plain) if plain else ())

    def _special(self, words: str) -> list[int]:
        """The special tokens in a template's words, cached because they are few."""
        if words not in self._written:
            self._written[words] = self._among(self._tokenize(words)) if words else []
        return self._written[words]

    def _among(self, ids: Sequence[int]) -> list[int]:
        return [token for token in ids if token in self._special_ids]


def _pieces(text: str) -> tuple[str, ...]:
    """The filled-in pieces of a segment, or the whole of a plain string."""
    return text.pieces[1::2] if isinstance(text, Segment) else (text,)


def as_stored(text: str, tokenize: Tokenize) -> str:
    """Reduce a segment to plain text for a checkpoint, unless its token ids would change."""
    return str(text) if list(tokenize(str(text))) == list(tokenize(text)) else text
