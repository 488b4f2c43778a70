"""The shipped verdict model in numpy: `verdict:embedded:crafting`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from amc_agents.budget import Bound, claim
from amc_agents.critics.render import newest_start
from amc_agents.critics.spec import allow, needed
from amc_agents.critics.value.checkpoint import weights_hash
from amc_agents.critics.value.local import check_words, shipped_folder
from amc_agents.critics.verdict.checkpoint import FILE, VerdictCheckpoint, VerdictPrompt, Words
from amc_agents.critics.verdict.reading import Ids, Spellings, Verdicts
from amc_agents.errors import CheckpointError, CriticError
from amc_agents.models.embedded.decoder import LlamaScorer
from amc_agents.models.embedded.llama import NumpyLlama
from amc_agents.models.embedded.weights import export_merged
from amc_agents.models.engine import log_softmax
from amc_agents.models.tokenizers import TemplateTokenizer, WordTokenizer
from amc_agents.usage import Usage, record

ADAPTER = "verdict"
"""Name of the adapter's folder inside the policy's folder."""


class EmbeddedVerdictReader:
    """A `VerdictReader` over the embedded policy with the verdict adapter merged in.

    A prefix cache keeps earlier prompts, so that candidates with a common past cost only their own tokens.

    Args:
        folder: the policy's folder.
        adapter: the verdict adapter's folder; None: `verdict/` inside the policy's folder.

    Raises:
        CheckpointError: a folder is invalid, or the adapter was trained on other weights.
    """

    def __init__(self, folder: str | Path, adapter: str | Path | None = None) -> None:
        folder = Path(folder)
        adapter = folder / ADAPTER if adapter is None else Path(adapter)
        self.checkpoint = VerdictCheckpoint.load(adapter)
        if self.checkpoint.base_model_hash != weights_hash(folder):
            raise CheckpointError(
                f"the verdict adapter in {adapter} was trained on other weights than those in {folder}: train it again "
                "on these weights"
            )
        self.name = f"verdict:embedded:{folder.name}"
        self.usage = Usage()
        self._tokenize = TemplateTokenizer.of_words(WordTokenizer.from_folder(folder))
        self._scorer = LlamaScorer(NumpyLlama.load(folder, adapter))
        self._lock = threading.RLock()
        self._checked = False

    @property
    def charged_as(self) -> str:
        """Name of the model under which a budget is charged."""
        return self.name

    async def prepare(self) -> VerdictCheckpoint:
        """Return the checkpoint. Raises `CheckpointError` at the first use if golden log-odds are not reproduced."""
        await asyncio.to_thread(self._check)
        return self.checkpoint

    async def read(self, prompts: Sequence[VerdictPrompt], words: Words) -> Verdicts:
        """Read `[N]` verdicts on N prompts; the oldest rounds of long prompts are dropped.

        Raises:
            CriticError: a prompt has unknown words or is too long, or the model's logits are not finite.
        """
        for prompt in prompts:
            # The question is not checked, since it is the template's.
            check_words(self._tokenize, prompt[:-1], self.name)
        rows = [self._row(prompt) for prompt in prompts]
        spellings = Spellings.of(words, self._tokenize)
        n_tokens = sum(len(row) + len(prefix) for row in rows for prefix in spellings.prefixes)
        async with claim([Bound(self.name, n_tokens, 0, len(rows))]) as claimed:
            verdicts, used = await asyncio.to_thread(self._read, rows, spellings)
            claimed.settle(used)
        self.usage += used
        record("critic", used, model=self.name)
        return verdicts

    def _check(self) -> None:
        with self._lock:
            if self._checked:
                return
            where, golden = f"critic {self.name}", self.checkpoint.golden
            self.checkpoint.check_prompts(self._tokenize, where)
            spellings = Spellings.of(self.checkpoint.words, self._tokenize)
            verdicts, _ = self._read([prompt.token_ids for prompt in golden], spellings)
            self.checkpoint.check_log_odds(verdicts.log_odds, where)
            self._checked = True

    def _read(self, rows: Sequence[Ids], spellings: Spellings) -> tuple[Verdicts, Usage]:
        prefixes = spellings.prefixes
        extended = [(*row, *prefix) for row in rows for prefix in prefixes]
        with self._lock:
            cached = self._scorer.cached_tokens
            hidden = self._scorer.last_hidden(extended)
            cached = self._scorer.cached_tokens - cached
        table = log_softmax(self._scorer.model.logits(hidden))
        if not np.isfinite(table).all():
            raise CriticError(f"critic {self.name}: the model's logits are not finite: check its weights")
        read = Usage(len(rows), sum(map(len, extended)), cached_tokens=cached)
        pairs = []
        for at in range(0, len(extended), len(prefixes)):
            tables = {
                prefix: {token: float(table[at + number, token]) for token in spellings.token_ids}
                for number, prefix in enumerate(prefixes)
            }
            pairs.append(spellings.verdict(tables))
        good, bad = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
        return Verdicts(good, bad, np.zeros(len(rows), dtype=np.bool_)), read

    def _row(self, prompt: VerdictPrompt) -> Ids:
        """Return the token ids of a prompt without the oldest rounds if it is too long."""
        task, *rounds, question = (tuple(self._tokenize(text)) if text else () for text in prompt)
        task = (*self.checkpoint.prefix_ids, *task)
        # The words must fit after the question.
        limit = min(self.checkpoint.max_tokens or self._context, self._context - _WORD) - len(question)
        kept = rounds[newest_start([len(task), *map(len, rounds)], limit) :]
        return tuple(token for ids in (task, *kept, question) for token in ids)

    @property
    def _context(self) -> int:
        return self._scorer.model.config.context


def export_embedded_verdict(folder: str | Path, out: str | Path) -> Path:
    """Write a shipped policy with its verdict adapter merged in, as a language model in float32.

    vLLM can serve the folder for `verdict:http://...`, with the same log-odds as `verdict:embedded:`.

    Args:
        folder: the policy's folder, with its adapter in `verdict/`.
        out: the folder to write, atomically; it must not exist or be empty.

    Returns:
        `out`.

    Raises:
        CheckpointError: `folder` is not an embedded policy with a verdict adapter.
        ConfigurationError: `out` is not empty.
    """
    adapter = Path(folder) / ADAPTER
    copied = [*(Path(folder) / name for name in _TOKENIZER), adapter / FILE]
    return export_merged(Path(folder), adapter, Path(out), config={}, copied=copied)


def from_spec(target: str, options: Mapping[str, str]) -> EmbeddedVerdictReader:
    """Build the reader of `verdict:embedded:crafting`, or of a folder of that layout. Raises `CriticSpecError`."""
    allow("verdict:embedded", options, "low", "high", "score")
    return EmbeddedVerdictReader(shipped_folder(needed("verdict:embedded", target, "crafting"), ADAPTER))


_WORD = 8
"""Tokens reserved for a verdict word."""
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
