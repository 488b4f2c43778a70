r"""The word-level tokenizer, read from a Hugging Face `tokenizer.json`, in plain Python.

Only the parts that the shipped tokenizers use are understood: string replacements, one isolating split pattern,
a word-level vocabulary whose words carry their own leading space (so decoding is `"".join`), and special tokens that
are found before anything else. Anything else in the file is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from amc_agents.errors import CheckpointError
from amc_agents.models.embedded.weights import read_as_saved, read_json

USER, ASSISTANT, END = "<|user|>", "<|assistant|>", "<|end|>"
_REMEMBERED_TEXTS = 50_000


class WordTokenizer:
    """Text to token ids and back.

    Args:
        vocabulary: word to id, special tokens included.
        special: the special tokens.
        replacements: (old, new) texts, applied in order to all that is not a special token.
        pattern: the words, as a regular expression; what lies between two matches is a word too.
        unknown: the token of a word outside the vocabulary.
    """

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        special: Iterable[str],
        replacements: Sequence[tuple[str, str]],
        pattern: str,
        unknown: str,
    ) -> None:
        self.vocabulary = dict(vocabulary)
        self._words = {number: word for word, number in self.vocabulary.items()}
        missing = {*special, unknown, USER, ASSISTANT, END} - self.vocabulary.keys()
        if missing:
            raise CheckpointError(f"the tokenizer lacks the tokens {sorted(missing)}")
        self.special_ids = frozenset(self.vocabulary[word] for word in special)
        self.end_id = self.vocabulary[END]
        self.unknown_id = self.vocabulary[unknown]
        longest_first = sorted(special, key=len, reverse=True)
        self._special = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        self._replacements = tuple(replacements)
        self._pattern = re.compile(pattern)
        self._user = (self.vocabulary[USER],)
        self._assistant = (self.vocabulary[ASSISTANT],)
        self._remembered: dict[tuple[str, bool], tuple[int, ...]] = {}

    @classmethod
    def from_folder(cls, folder: str | Path) -> WordTokenizer:
        """Read `tokenizer.json`. Raises `CheckpointError` where it asks for more than this class can do."""
        path = Path(folder) / "tokenizer.json"
        data = read_json(path)
        with read_as_saved(folder):
            return cls(
                vocabulary=_vocabulary(data),
                special=[entry["content"] for entry in data["added_tokens"]],
                replacements=_replacements(data.get("normalizer")),
                pattern=_pattern(data.get("pre_tokenizer")),
                unknown=data["model"]["unk_token"],
            )

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of `text`; special tokens written out in it become themselves, unless `special` is False."""
        return list(self._ids(text, special))

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of `ids`; special tokens are left out unless `skip_special` is False."""
        words = self._words
        if skip_special:
            return "".join([words[i] for i in ids if i not in self.special_ids])
        return "".join([words[i] for i in ids])

    def token(self, token_id: int) -> str:
        """The text of one token, special ones included."""
        return self._words[token_id]

    def encode_chat(self, messages: Iterable[tuple[str, str]], *, add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a dialogue, as the folder's chat template writes it; no content can write a special token.

        Args:
            messages: (role, content); every role but "assistant" speaks as the user.
            add_generation_prompt: end with the token after which the assistant speaks.
        """
        ids: list[int] = []
        for role, content in messages:
            if role == "assistant":
                ids += self._assistant
                ids += self._ids(content, False)
                ids.append(self.end_id)
            else:
                ids += self._user
                ids += self._ids(content, False)
        if add_generation_prompt:
            ids += self._assistant
        return ids

    def _ids(self, text: str, special: bool) -> tuple[int, ...]:
        """Ids of a text; texts come again with every later turn of a dialogue, so they are remembered."""
        known = self._remembered.get((text, special))
        if known is None:
            if len(self._remembered) >= _REMEMBERED_TEXTS:
                self._remembered.clear()
            known = self._remembered[text, special] = tuple(self._compute(text) if special else self._plain(text))
        return known

    def _compute(self, text: str) -> Iterable[int]:
        for part in self._special.split(text):
            if self._special.fullmatch(part):
                yield self.vocabulary[part]
            elif part:
                yield from self._plain(part)

    def _plain(self, text: str) -> Iterable[int]:
        """Ids of a text without special tokens."""
        for old, new in self._replacements:
            text = text.replace(old, new)
        at = 0
        for match in self._pattern.finditer(text):
            if match.start() > at:
                yield self._id(text[at : match.start()])
            if match.end() > match.start():
                yield self._id(match.group())
            at = match.end()
        if at < len(text):
            yield self._id(text[at:])

    def _id(self, word: str) -> int:
        return self.vocabulary.get(word, self.unknown_id)


def _vocabulary(data: dict[str, Any]) -> dict[str, int]:
    if data["model"]["type"] != "WordLevel":
        raise CheckpointError(f"expected a WordLevel tokenizer, got {data['model']['type']!r}")
    for entry in data["added_tokens"]:
        if any(entry.get(flag) for flag in ("single_word", "lstrip", "rstrip", "normalized")):
            raise CheckpointError(f"the added token {entry['content']!r} is matched in a way that is not supported")
    return {**data["model"]["vocab"], **{entry["content"]: entry["id"] for entry in data["added_tokens"]}}


def _replacements(normalizer: dict[str, Any] | None) -> list[tuple[str, str]]:
    if normalizer is None:
        return []
    steps = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
    for step in steps:
        if step["type"] != "Replace" or "String" not in step["pattern"]:
            raise CheckpointError(f"expected string replacements as normalizers, got {step}")
    return [(step["pattern"]["String"], step["content"]) for step in steps]


def _pattern(pre_tokenizer: dict[str, Any] | None) -> str:
    split = pre_tokenizer or {}
    regex = split.get("pattern", {}).get("Regex")
    if split.get("type") != "Split" or split.get("behavior") != "Isolated" or split.get("invert") or not regex:
        raise CheckpointError(f"expected one isolating Split by a regular expression, got {split.get('type')!r}")
    return str(regex)
