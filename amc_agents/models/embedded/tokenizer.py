"""The word-level tokenizer of the embedded models, and their chat template."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from amc_agents.errors import CheckpointError
from amc_agents.models.tokenizer_file import NAME, TokenizerFile
from amc_agents.quoting import quoted

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
