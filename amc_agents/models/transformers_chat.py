"""Any transformers causal language model from a folder as a batched LangChain chat model. Needs the `[train]` extra.

The same batcher and the same settings as the embedded model. Prompts that arrive together form a group that is
padded on the left and keeps its own KV cache; a group's rows step together. Prefixes are not remembered between calls.
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
from amc_agents.models.chat import EngineChatModel
from amc_agents.models.engine import Float32Array, Joined
from amc_agents.models.replies import Engine
from amc_agents.types import IntArray

_UNBOUNDED_CONTEXT = 1_000_000
_NEVER = r"(?!)"
"""Matches nothing."""


class TransformersChatModel(EngineChatModel):
    """A causal language model folder (weights, tokenizer with a chat template), computed by torch."""

    model: str
    """The folder."""
    device: str = "cpu"
    """Where torch computes."""

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
                raise ConfigurationError(f"no model folder {self.model!r}: it should hold config.json and weights")
            self._place = str(folder.resolve()), self.device
        return _load(*self._place)


@lru_cache(maxsize=2)
def _load(folder: str, device: str) -> Engine:
    """One engine for all model objects of a folder."""
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
    """A Hugging Face tokenizer that has a chat template."""

    def __init__(self, tokenizer: Any) -> None:
        if not tokenizer.chat_template:
            raise CheckpointError(f"the tokenizer of {tokenizer.name_or_path!r} has no chat template; add one to it")
        self.tokenizer = tokenizer
        special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        longest_first = sorted(special, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or _NEVER)

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Token ids of a dialogue by the folder's template.

        A template is filled in as text, in which a content could write the template's own tokens and so speak in
        another's role. A special token that a content spells out is therefore written with zero-width spaces in it.
        """
        dialogue = [{"role": role, "content": self._special.sub(_spaced, content)} for role, content in messages]
        ids = self.tokenizer.apply_chat_template(dialogue, add_generation_prompt=True, tokenize=True)
        return list(ids["input_ids"] if isinstance(ids, Mapping) else ids)

    def token(self, token_id: int) -> str:
        """The text of one token, special ones included."""
        return str(self.tokenizer.decode([token_id]))


def _spaced(token: re.Match[str]) -> str:
    return "".join(f"{character}\u200b" for character in token[0])


class _Group:
    """Rows that were read together: their shared cache, and which columns of it are padding."""

    def __init__(self, cache: Any, mask: Any) -> None:
        self.cache, self.mask = cache, mask


class HFDecoder:
    """Implements `amc_agents.models.engine.Decoder` over a torch model."""

    def __init__(self, network: Any, tokenizer: HFChatTokenizer) -> None:
        self._network, self._tokenizer = network, tokenizer.tokenizer
        config = network.generation_config
        ends = config.eos_token_id if config.eos_token_id is not None else self._tokenizer.eos_token_id
        own = {self._tokenizer.eos_token_id} - {None}
        self.end_tokens = frozenset(own | set([ends] if isinstance(ends, int) else ends or []))
        self.context = int(getattr(network.config, "max_position_embeddings", _UNBOUNDED_CONTEXT))
        self._groups: list[_Group] = []
        self._places: list[tuple[_Group, int]] = []

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of written tokens, special tokens left out."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def join(self, prompts: Sequence[tuple[int, ...]]) -> Joined:
        """Read prompts, equal ones once, as a new group."""
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
        """Append one token to each row, group by group; `[B, V]` logits of the next."""
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
        """End a row; the last row takes its place."""
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
        """Forget every row."""
        self._groups, self._places = [], []


def _numpy(logits: Any) -> Float32Array:
    return np.asarray(logits.float().cpu().numpy(), dtype=np.float32)
