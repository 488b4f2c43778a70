"""A transformers causal language model as a batched LangChain chat model. Requires the `[train]` extra.

It shares the batcher and the settings of the embedded model. Prompts that arrive together form a group, which is
left-padded, has its own KV cache and advances together. Prefixes are not cached between calls.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PrivateAttr

from amc_agents.errors import CheckpointError, ConfigurationError, MissingExtra
from amc_agents.models.batcher import Batcher
from amc_agents.models.chat import Engine, EngineChatModel
from amc_agents.models.engine import Float32Array, Joined
from amc_agents.quoting import excerpt, quoted
from amc_agents.types import IntArray

_UNBOUNDED_CONTEXT = 1_000_000
_NEVER = r"(?!)"
"""A pattern without matches."""


class TransformersChatModel(EngineChatModel):
    """A causal language model from a folder (weights, and a tokenizer with a chat template), computed by torch."""

    model: str
    """The model folder."""
    device: str = "cpu"
    """The torch device."""

    _place: tuple[str, str] | None = PrivateAttr(default=None)

    @property
    def _llm_type(self) -> str:
        return "amc-transformers"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": self.model, "temperature": self.temperature, "top_p": self.top_p}

    def _engine(self) -> Engine:
        if self._place is None:
            folder = Path(self.model)
            if not (folder / "config.json").is_file():
                raise ConfigurationError(
                    f"no model folder {quoted(self.model)}: expected a folder with config.json and weights"
                )
            self._place = str(folder.resolve()), self.device
        return _load(*self._place)


@lru_cache(maxsize=2)
def _load(folder: str, device: str) -> Engine:
    """Return the engine of a folder, which all model objects share."""
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise MissingExtra(error.name or "transformers", "train") from error
    tokenizer = HFChatTokenizer(AutoTokenizer.from_pretrained(folder, trust_remote_code=False))
    network: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False)
    network = network.to(device).eval()
    return Engine(Path(folder).name, Batcher(HFDecoder(network, tokenizer), max_rows=64), tokenizer)


class HFChatTokenizer:
    """A Hugging Face tokenizer with a chat template. Raises `CheckpointError` if it has none."""

    def __init__(self, tokenizer: Any) -> None:
        if not tokenizer.chat_template:
            raise CheckpointError(
                f"the tokenizer of {quoted(tokenizer.name_or_path)} has no chat template: add chat_template.jinja"
            )
        self.tokenizer = tokenizer
        special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        longest_first = sorted(special, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or _NEVER)

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Return token ids of a dialogue by the chat template of the folder, in training and in serving.

        The template is rendered as text, so message contents could spell special tokens and forge other roles. Special
        tokens in contents are therefore broken up by zero-width spaces.

        Raises:
            ConfigurationError: the template refuses the dialogue, as some refuse system messages.
        """
        dialogue = [{"role": role, "content": self._special.sub(_spaced, content)} for role, content in messages]
        from jinja2 import TemplateError

        try:
            ids = self.tokenizer.apply_chat_template(dialogue, add_generation_prompt=True, tokenize=True)
        except TemplateError as error:
            # A fallback, such as a system message within the user's, would not be that of other servers of the model.
            roles = ", ".join(dict.fromkeys(role for role, _ in messages))
            raise ConfigurationError(
                f"the chat template of {quoted(self.tokenizer.name_or_path)} refuses a dialogue of the roles {roles}: "
                f"{excerpt(str(error), 200)}. Leave out the system message (system=None), or change chat_template.jinja"
            ) from error
        return list(ids["input_ids"] if isinstance(ids, Mapping) else ids)

    def token(self, token_id: int) -> str:
        """Return the text of a token; special tokens have a text, too."""
        return str(self.tokenizer.decode([token_id]))


def _spaced(token: re.Match[str]) -> str:
    return "".join(f"{character}\u200b" for character in token[0])


class _Group:
    """Rows that were read together: their shared KV cache and its attention mask."""

    def __init__(self, cache: Any, mask: Any) -> None:
        self.cache, self.mask = cache, mask


class HFDecoder:
    """A `amc_agents.models.engine.Decoder` over a torch model."""

    def __init__(self, network: Any, tokenizer: HFChatTokenizer) -> None:
        self._network, self._tokenizer = network, tokenizer.tokenizer
        config = network.generation_config
        ends = config.eos_token_id if config.eos_token_id is not None else self._tokenizer.eos_token_id
        of_tokenizer = {self._tokenizer.eos_token_id} - {None}
        self.end_tokens = frozenset(of_tokenizer | set([ends] if isinstance(ends, int) else ends or []))
        self.context = int(getattr(network.config, "max_position_embeddings", _UNBOUNDED_CONTEXT))
        self._groups: list[_Group] = []
        self._places: list[tuple[_Group, int]] = []

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of generated tokens without special tokens."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def join(self, prompts: Sequence[tuple[int, ...]]) -> Joined:
        """Read prompts as a new group; equal prompts are computed once."""
        import torch

        distinct = list(dict.fromkeys(prompts))
        width = max(map(len, distinct))
        ids = torch.zeros((len(distinct), width), dtype=torch.long, device=self._network.device)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(distinct):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        with torch.inference_mode():
            out = self._network(
                input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1
            )
            places = [distinct.index(prompt) for prompt in prompts]
            group = _Group(out.past_key_values, mask[places])
            group.cache.batch_select_indices(torch.tensor(places, device=ids.device))
        self._groups.append(group)
        self._places += [(group, row) for row in range(len(prompts))]
        seen: set[int] = set()
        cached = []
        for place, prompt in zip(places, prompts, strict=True):
            cached.append(len(prompt) if place in seen else 0)
            seen.add(place)
        return Joined(_numpy(out.logits[places, -1]), tuple(cached), tuple(range(len(prompts))))

    def step(self, tokens: IntArray) -> Float32Array:
        """Append one token to each row, group by group, and return `[B, V]` logits of the next token."""
        import torch

        logits: list[Float32Array | None] = [None] * len(tokens)
        for group in self._groups:
            rows = sorted((row, index) for index, (owner, row) in enumerate(self._places) if owner is group)
            indices = [index for _, index in rows]
            new = torch.tensor(tokens[indices], dtype=torch.long, device=self._network.device)[:, None]
            group.mask = torch.cat([group.mask, torch.ones_like(new)], dim=1)
            with torch.inference_mode():
                out = self._network(
                    input_ids=new,
                    attention_mask=group.mask,
                    position_ids=group.mask.sum(-1, keepdim=True) - 1,
                    past_key_values=group.cache,
                    use_cache=True,
                )
            for index, line in zip(indices, _numpy(out.logits[:, -1]), strict=True):
                logits[index] = line
        return np.stack([line for line in logits if line is not None])

    def leave(self, row: int) -> None:
        """Remove a row; the last row takes its place."""
        import torch

        group, gone = self._places[row]
        self._places[row] = self._places[-1]
        self._places.pop()
        keep = [index for index in range(len(group.mask)) if index != gone]
        if not keep:
            self._groups.remove(group)
            return
        with torch.inference_mode():
            group.mask = group.mask[keep]
            group.cache.batch_select_indices(torch.tensor(keep, device=group.mask.device))
        self._places = [
            (owner, place - 1) if owner is group and place > gone else (owner, place) for owner, place in self._places
        ]

    def clear(self) -> None:
        """Remove all rows."""
        self._groups, self._places = [], []


def _numpy(logits: Any) -> Float32Array:
    return np.asarray(logits.float().cpu().numpy(), dtype=np.float32)
