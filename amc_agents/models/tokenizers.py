"""Tokenizers that produce no special tokens from untrusted text, and the embedded models' word-level tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amc_agents.errors import CheckpointError
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
