"""A Llama that writes turns for thousands of dialogues side by side, and plays them on to their ends.

Each dialogue is a row of a key-value cache. At every tick each row takes one token: one that the world said, or one
that the model samples. A row whose turn has ended waits for the world, which the CPU asks every few ticks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from reproduce.larger.known import Known

Tokens = tuple[int, ...]
MAX_TURN = 64
"""Maximum length of a turn in tokens, as in `EmbeddedChatModel`."""
CONTEXT = 1024
"""Longest dialogue in tokens. One that grows longer has failed."""
TICKS = 8
"""Ticks between two looks at what the rows have written."""
_READ = 256
"""Dialogues that are read at a time."""
_HEARD = 192
"""Longest piece that the world may say, in tokens."""


@dataclass(frozen=True)
class Start:
    """A state from which to play on."""

    known: Known
    state: int
    """Of the world."""
    dialogue: Tokens
    n_steps: int


@dataclass(frozen=True, eq=False)
class Place:
    """Where the keys and values of a dialogue's beginning are."""

    rows: Rows
    row: int
    at: int
    """Position of the first token that is not there."""


class Batched:
    """A policy on one device.

    Args:
        model: a causal Llama.
        end: the token that ends a turn.
        n_rows: rows of a batch of rollouts.
        seed: of the sampling.
    """

    def __init__(self, model: LlamaForCausalLM, end: int, n_rows: int, seed: int) -> None:
        self.model, self.end, self.n_rows = model.eval(), end, n_rows
        self.device, self.dtype = model.device, model.dtype
        self._random = torch.Generator(self.device).manual_seed(seed)
        shape = model.config
        self.n_heads, self.n_kv = int(shape.num_attention_heads), int(shape.num_key_value_heads or 1)
        self.head_size = int(getattr(shape, "head_dim", None) or shape.hidden_size // self.n_heads)
        self.n_sampled = 0
        """Tokens sampled so far."""

    @classmethod
    def load(cls, folder: Path, end: int, n_rows: int, seed: int) -> Batched:
        """Load a model folder, on the GPU if there is one."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        model = loaded(folder, dtype, device)
        return cls(model, end, n_rows, seed)

    @torch.inference_mode()
    def turns(
        self, dialogues: Sequence[Tokens], temperatures: Sequence[float], places: Sequence[Place | None]
    ) -> tuple[list[Tokens], list[Place]]:
        """Sample a turn for each dialogue.

        Args:
            dialogues: what stands there so far.
            temperatures: one for each.
            places: where the keys and values of its beginning are; None: nowhere yet.

        Returns:
            The turns, and the places of the dialogues with their turns.
        """
        said: list[Tokens] = []
        after: list[Place] = []
        for first in range(0, len(dialogues), self.n_rows):
            part = slice(first, first + self.n_rows)
            rows = self._rows(dialogues[part], torch.tensor(temperatures[part]), places[part])
            while not rows.all_waiting():
                rows.advance(TICKS)
            said += map(tuple, rows.said_by(range(rows.n)))
            after += [Place(rows, row, at) for row, at in enumerate(rows.at.tolist())]
        return said, after

    @torch.inference_mode()
    def play_on(self, starts: Sequence[Start], n: int, temperature: float, horizon: int) -> list[tuple[Tokens, float]]:
        """Continue every unfinished state n times to the end: the dialogue and the return of each continuation."""
        each, found = max(1, self.n_rows // n), []
        for first in range(0, len(starts), each):
            some = [start for start in starts[first : first + each] for _ in range(n)]
            found += self._played_on(some, temperature, horizon)
        return found

    def _played_on(self, starts: Sequence[Start], temperature: float, horizon: int) -> list[tuple[Tokens, float]]:
        found = [0.0] * len(starts)
        dialogues = [list(start.dialogue) for start in starts]
        states, steps = [start.state for start in starts], [start.n_steps for start in starts]
        heats = torch.full((len(starts),), temperature)
        rows = self._rows([start.dialogue for start in starts], heats, [None] * len(starts))
        owner = np.arange(len(starts))
        while len(owner):
            rows.advance(TICKS)
            waiting, full = rows.waiting_rows(), rows.full_rows()
            heard: dict[int, Tokens] = {}
            over = full.copy()
            for row, said in zip(waiting.tolist(), rows.said_by(waiting), strict=True):
                which = int(owner[row])
                after = starts[which].known.after(states[which], said)
                states[which], steps[which] = after.state, steps[which] + 1
                dialogues[which] += (*said, *after.heard)
                if after.done or steps[which] >= horizon:
                    over[row], found[which] = True, after.reward if after.done else 0.0
                elif not over[row]:
                    heard[row] = after.heard
            rows.hear(heard)
            rows.stop(over)
            if rows.n_live() < len(owner) * 0.7:
                owner = owner[rows.keep_live()]
        return list(zip(map(tuple, dialogues), found, strict=True))

    def _rows(self, dialogues: Sequence[Tokens], temperatures: Tensor, places: Sequence[Place | None]) -> Rows:
        """Make rows that go on where the places end; dialogues without a place are read, equal ones once."""
        unread = list(dict.fromkeys(text for text, place in zip(dialogues, places, strict=True) if place is None))
        number = {dialogue: index for index, dialogue in enumerate(unread)}
        sources: list[tuple[Tensor, Tensor]] = []
        if unread:
            longest = max(map(len, unread))
            keys, values = self._empty(len(unread), longest), self._empty(len(unread), longest)
            for first in range(0, len(unread), _READ):
                some = slice(first, first + _READ)
                self.read(unread[some], (keys[:, some], values[:, some]))
            sources.append((keys, values))
        known = list(dict.fromkeys(place.rows for place in places if place is not None))
        which = {rows: index for index, rows in enumerate(known, start=len(sources))}
        sources += [(rows.keys, rows.values) for rows in known]
        origins = [
            (0, number[text]) if place is None else (which[place.rows], place.row)
            for text, place in zip(dialogues, places, strict=True)
        ]
        at = [len(text) - 1 if place is None else place.at for text, place in zip(dialogues, places, strict=True)]
        return Rows(self, dialogues, at, sources, origins, temperatures.to(self.device, torch.float32))

    def _empty(self, rows: int, length: int) -> Tensor:
        layers = int(self.model.config.num_hidden_layers)
        return torch.zeros(layers, rows, self.n_kv, length, self.head_size, device=self.device, dtype=self.dtype)

    def read(self, dialogues: Sequence[Tokens], cache: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """`[B, S, hidden]` the last layer's states of padded dialogues; keys and values go to the cache."""
        ids = padded(dialogues).to(self.device)
        length = ids.shape[1]
        core = self.model.model
        hidden = core.embed_tokens(ids)
        turned = core.rotary_emb(hidden, torch.arange(length, device=self.device)[None])
        for layer, block in enumerate(core.layers):
            query, key, value = self._projected(block, hidden, turned)
            if cache is not None:
                cache[0][layer, :, :, :length], cache[1][layer, :, :, :length] = key, value
            attended = torch.nn.functional.scaled_dot_product_attention(
                query, key.repeat_interleave(self.n_heads // self.n_kv, 1),
                value.repeat_interleave(self.n_heads // self.n_kv, 1), is_causal=True,
            )  # fmt: skip
            hidden = self._finished(block, hidden, attended.transpose(1, 2))
        normed: Tensor = core.norm(hidden)
        return normed

    def next_logits(self, tokens: Tensor, at: Tensor, keys: Tensor, values: Tensor, length: int) -> Tensor:
        """`[B, V]` logits after each row's token, which stands at its own position; the cache is extended by it."""
        core, every = self.model.model, torch.arange(len(tokens), device=self.device)
        hidden = core.embed_tokens(tokens)[:, None]
        turned = core.rotary_emb(hidden, at[:, None])
        ahead = (torch.arange(length, device=self.device)[None] > at[:, None])[:, None, None]
        for layer, block in enumerate(core.layers):
            query, key, value = self._projected(block, hidden, turned)
            keys[layer][every, :, at], values[layer][every, :, at] = key[:, :, 0], value[:, :, 0]
            grouped = query.reshape(len(tokens), self.n_kv, -1, self.head_size)
            scores = grouped @ keys[layer][:, :, :length].transpose(-1, -2) * self.head_size**-0.5
            shares = scores.masked_fill(ahead, -torch.inf).softmax(-1, dtype=torch.float32).to(self.dtype)
            attended = shares @ values[layer][:, :, :length]
            hidden = self._finished(block, hidden, attended.reshape(len(tokens), 1, self.n_heads, self.head_size))
        logits: Tensor = self.model.lm_head(core.norm(hidden)[:, 0])
        return logits.float()

    def _projected(self, block: Any, hidden: Tensor, turned: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, `[B, heads, S, head size]`."""
        normed, own = block.input_layernorm(hidden), block.self_attn
        shape = *hidden.shape[:2], -1, self.head_size
        query, key, value = (part(normed).view(shape).transpose(1, 2) for part in (own.q_proj, own.k_proj, own.v_proj))
        query, key = apply_rotary_pos_emb(query, key, *turned)
        return query, key, value

    @staticmethod
    def _finished(block: Any, hidden: Tensor, attended: Tensor) -> Tensor:
        """Apply the rest of a layer to `[B, S, heads, head size]`."""
        hidden = hidden + block.self_attn.o_proj(attended.flatten(2))
        whole: Tensor = hidden + block.mlp(block.post_attention_layernorm(hidden))
        return whole

    def sampled(self, logits: Tensor, temperatures: Tensor) -> Tensor:
        """Sample a token per row."""
        uniform = torch.rand(logits.shape, generator=self._random, device=self.device).clamp_min(1e-20)
        return (logits / temperatures[:, None] - (-uniform.log()).log()).argmax(-1)


class Rows:
    """Dialogues that are being written.

    Args:
        policy: the model.
        dialogues: `[B]` what stands there so far.
        at: `[B]` position of the first token of each that the model has not read.
        sources: keys and values, `[layers, D, KV heads, S, head size]`.
        origins: `[B]` the source of each row, and its number there.
        temperatures: `[B]`.
    """

    def __init__(
        self,
        policy: Batched,
        dialogues: Sequence[Tokens],
        at: Sequence[int],
        sources: Sequence[tuple[Tensor, Tensor]],
        origins: Sequence[tuple[int, int]],
        temperatures: Tensor,
    ) -> None:
        device, self.n = policy.device, len(dialogues)
        self.policy, self.temperatures = policy, temperatures
        self.room = min(CONTEXT, max(map(len, dialogues)) + MAX_TURN + 32)
        self.keys, self.values = (self._gathered([each[part] for each in sources], origins) for part in (0, 1))
        self.token = torch.tensor([text[here] for text, here in zip(dialogues, at, strict=True)], device=device)
        self.at = torch.tensor(at, device=device)
        self.waiting = torch.zeros(self.n, dtype=torch.bool, device=device)
        self.dead = torch.zeros(self.n, dtype=torch.bool, device=device)
        self.said = torch.zeros(self.n, MAX_TURN, dtype=torch.long, device=device)
        self.n_said = torch.zeros(self.n, dtype=torch.long, device=device)
        self.heard = torch.zeros(self.n, _HEARD, dtype=torch.long, device=device)
        self.n_heard, self.listened = torch.zeros_like(self.n_said), torch.zeros_like(self.n_said)
        self._every = torch.arange(self.n, device=device)
        self._last = max(at)
        """No row is beyond this position."""
        self._waiting, self._at = np.zeros(self.n, dtype=bool), np.array(at)
        self.hear({row: text[here + 1 :] for row, (text, here) in enumerate(zip(dialogues, at, strict=True))})

    def _gathered(self, sources: Sequence[Tensor], origins: Sequence[tuple[int, int]]) -> Tensor:
        layers, _, heads, _, size = sources[0].shape
        whole = torch.zeros(layers, self.n, heads, self.room, size, device=sources[0].device, dtype=sources[0].dtype)
        for number, source in enumerate(sources):
            rows = [row for row, (which, _) in enumerate(origins) if which == number]
            picked = torch.tensor([origins[row][1] for row in rows], device=source.device)
            here, length = torch.tensor(rows, device=source.device), min(source.shape[3], self.room)
            for layer in range(layers):
                whole[layer][here, :, :length] = source[layer][:, :, :length].index_select(0, picked)
        return whole

    def advance(self, ticks: int) -> None:
        """Let every row that does not wait take some tokens."""
        for _ in range(ticks):
            self._last += 1
            length = min(self.room, -(-self._last // 64) * 64)
            self._tick(length)
        self._waiting = (self.waiting & ~self.dead).cpu().numpy()
        self._at = self.at.cpu().numpy()
        self._last = int(self._at.max(initial=0)) + 1
        if self._last + TICKS >= self.room and self.room < CONTEXT:
            self._grow()

    def _grow(self) -> None:
        more = min(CONTEXT, self.room + 128) - self.room
        self.keys, self.values = (torch.nn.functional.pad(part, (0, 0, 0, more)) for part in (self.keys, self.values))
        self.room += more

    def _tick(self, length: int) -> None:
        policy = self.policy
        logits = policy.next_logits(self.token, self.at, self.keys, self.values, length)
        said = policy.sampled(logits, self.temperatures)
        listens = self.listened < self.n_heard
        goes = ~self.waiting & (self.at < self.room - 1)
        speaks = goes & ~listens
        heard = self.heard[self._every, self.listened.clamp(max=_HEARD - 1)]
        place = self.n_said.clamp(max=MAX_TURN - 1)
        self.said[self._every, place] = torch.where(speaks, said, self.said[self._every, place])
        self.n_said += speaks
        self.listened += goes & listens
        self.token = torch.where(goes, torch.where(listens, heard, said), self.token)
        self.at += goes
        self.waiting |= speaks & ((said == policy.end) | (self.n_said == MAX_TURN))

    def all_waiting(self) -> bool:
        """Whether every row has ended its turn, or has no room left."""
        return bool((self._waiting | self.full_rows()).all())

    def waiting_rows(self) -> np.ndarray:
        """Numbers of the rows that have ended a turn."""
        return np.flatnonzero(self._waiting)

    def full_rows(self) -> np.ndarray:
        """`[B]` whether a row has no room left."""
        return self._at >= CONTEXT - 1

    def n_live(self) -> int:
        """Number of rows that have not been stopped."""
        return int((~self.dead).sum())

    def said_by(self, rows: Sequence[int] | np.ndarray) -> list[list[int]]:
        """Return the last turns of some rows."""
        picked = torch.as_tensor(np.asarray(rows), device=self.said.device)
        said, lengths = self.said[picked].cpu().tolist(), self.n_said[picked].cpu().tolist()
        self.policy.n_sampled += sum(lengths)
        return [turn[:length] for turn, length in zip(said, lengths, strict=True)]

    def hear(self, heard: dict[int, Tokens]) -> None:
        """Tell some waiting rows what the world said, and let them go on."""
        if not heard:
            return
        rows = torch.tensor(list(heard), device=self.said.device)
        lengths = list(map(len, heard.values()))
        table = np.zeros((len(heard), _HEARD), dtype=np.int64)
        for number, tokens in enumerate(heard.values()):
            table[number, : len(tokens)] = tokens
        self.heard[rows] = torch.from_numpy(table).to(rows.device)
        self.n_heard[rows] = torch.tensor(lengths, device=rows.device)
        self.listened[rows] = 0
        self.n_said[rows] = 0
        self.waiting[rows] = False

    def stop(self, over: np.ndarray) -> None:
        """Stop some rows for good."""
        stopped = torch.from_numpy(over).to(self.dead.device)
        self.dead |= stopped
        self.waiting |= stopped

    def keep_live(self) -> np.ndarray:
        """Drop the rows that were stopped, and return the numbers of those that are kept."""
        kept = torch.nonzero(~self.dead).flatten()
        self.keys, self.values = (part.index_select(1, kept) for part in (self.keys, self.values))
        names = "temperatures token at waiting dead said n_said heard n_heard listened".split()
        for name in names:
            setattr(self, name, getattr(self, name)[kept])
        self._every = torch.arange(len(kept), device=kept.device)
        numbers = kept.cpu().numpy()
        self._waiting, self._at = self._waiting[numbers], self._at[numbers]
        return numbers


def loaded(folder: Path, dtype: torch.dtype, device: str) -> LlamaForCausalLM:
    """Load a model folder."""
    model: Any = LlamaForCausalLM.from_pretrained(folder, dtype=dtype)
    return cast(LlamaForCausalLM, model.to(device))


def padded(dialogues: Sequence[Tokens]) -> Tensor:
    """`[B, S]` token ids, padded at the end."""
    table = np.zeros((len(dialogues), max(map(len, dialogues))), dtype=np.int64)
    for number, dialogue in enumerate(dialogues):
        table[number, : len(dialogue)] = dialogue
    return torch.from_numpy(table)
