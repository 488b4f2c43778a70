"""The shipped verdict model, in numpy: `verdict:embedded:crafting`."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from amc_agents.critics.options import allow, needed
from amc_agents.critics.render import newest_start
from amc_agents.critics.tokenizing import TemplateTokenizer
from amc_agents.critics.value.checkpoint import weights_hash
from amc_agents.critics.value.embedded import check_words, shipped_folder
from amc_agents.critics.verdict.checkpoint import FILE, VerdictCheckpoint, VerdictPrompt, Words
from amc_agents.critics.verdict.reading import Verdicts
from amc_agents.critics.verdict.spellings import Ids, Spellings
from amc_agents.errors import CheckpointError, ConfigurationError, CriticError
from amc_agents.models.embedded.decoder import LlamaScorer
from amc_agents.models.embedded.llama import NumpyLlama
from amc_agents.models.embedded.tokenizer import WordTokenizer
from amc_agents.models.embedded.weights import merge_adapter, read_json, read_weights
from amc_agents.models.sampling import log_softmax
from amc_agents.usage import Usage, record

ADAPTER = "verdict"
"""Name of the adapter's folder inside the policy's."""


class EmbeddedVerdictReader:
    """A `VerdictReader` over the embedded policy's weights with the verdict adapter merged in.

    Keys and values of prompts seen before are kept: candidates share their past, and cost their own tokens alone.

    Args:
        folder: the policy's folder.
        adapter: the verdict adapter's folder; None: `verdict/` inside the policy's.

    Raises:
        CheckpointError: the folders are not such models, or the adapter was trained on other weights.
    """

    def __init__(self, folder: str | Path, adapter: str | Path | None = None) -> None:
        folder = Path(folder)
        adapter = folder / ADAPTER if adapter is None else Path(adapter)
        self.checkpoint = VerdictCheckpoint.load(adapter)
        if self.checkpoint.base_model_hash != weights_hash(folder):
            raise CheckpointError(
                f"the verdict adapter in {adapter} was trained on other weights than those in {folder}: train it again"
            )
        self.name = f"verdict:embedded:{folder.name}"
        self.usage = Usage()
        self._tokenize = TemplateTokenizer.of_words(WordTokenizer.from_folder(folder))
        self._scorer = LlamaScorer(NumpyLlama.load(folder, adapter))
        self._lock = threading.RLock()
        self._checked = False

    async def prepare(self) -> VerdictCheckpoint:
        """The checkpoint. Raises `CheckpointError` at the first use, where golden log-odds are not reproduced."""
        await asyncio.to_thread(self._check)
        return self.checkpoint

    async def read(self, prompts: Sequence[VerdictPrompt], words: Words) -> Verdicts:
        """`[N]` verdicts on N prompts; rounds are dropped by the rule of `windows` where one is too long.

        Raises:
            CriticError: a prompt cannot be read or made to fit, or the model's numbers are broken.
        """
        for prompt in prompts:
            # The question is ours.
            check_words(self._tokenize, prompt[:-1], self.name)
        rows = [self._row(prompt) for prompt in prompts]
        verdicts, used = await asyncio.to_thread(self._read, rows, Spellings.of(words, self._tokenize))
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
            verdicts, _ = self._read([one.token_ids for one in golden], spellings)
            self.checkpoint.check_log_odds(verdicts.log_odds, where)
            self._checked = True

    def _read(self, rows: Sequence[Ids], spellings: Spellings) -> tuple[Verdicts, Usage]:
        prefixes = spellings.prefixes
        asked = [(*row, *prefix) for row in rows for prefix in prefixes]
        with self._lock:
            cached = self._scorer.cached_tokens
            hidden = self._scorer.last_hidden(asked)
            cached = self._scorer.cached_tokens - cached
        table = log_softmax(self._scorer.model.logits(hidden))
        if not np.isfinite(table).all():
            raise CriticError(f"critic {self.name}: the model's logits are not finite: its weights are broken")
        read = Usage(len(rows), sum(map(len, asked)), cached_tokens=cached)
        pairs = []
        for at in range(0, len(asked), len(prefixes)):
            tables = {
                prefix: {token: float(table[at + number, token]) for token in spellings.token_ids}
                for number, prefix in enumerate(prefixes)
            }
            pairs.append(spellings.verdict(tables))
        good, bad = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
        return Verdicts(good, bad, np.zeros(len(rows), dtype=np.bool_)), read

    def _row(self, prompt: VerdictPrompt) -> Ids:
        """Token ids of a prompt."""
        task, *rounds, question = (tuple(self._tokenize(text)) if text else () for text in prompt)
        task = (*self.checkpoint.prefix_ids, *task)
        # The words have to fit behind the question.
        limit = min(self.checkpoint.max_tokens or self._context, self._context - _WORD) - len(question)
        kept = rounds[newest_start([len(task), *map(len, rounds)], limit) :]
        return tuple(token for ids in (task, *kept, question) for token in ids)

    @property
    def _context(self) -> int:
        return self._scorer.model.config.context


def export_embedded_verdict(folder: str | Path, out: str | Path) -> Path:
    """Writes a shipped policy with its verdict adapter merged in, as a language model in float32.

    vLLM serves the folder for `verdict:http://...`, which gives the log-odds that `verdict:embedded:` gives.

    Args:
        folder: the policy's folder, its adapter in `verdict/`.
        out: the folder to write; it must not exist yet, or be empty. It appears whole or not at all.

    Returns:
        `out`.

    Raises:
        CheckpointError: `folder` is not such a model.
        ConfigurationError: `out` holds something already.
    """
    from safetensors.numpy import save

    folder, out = Path(folder), Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"{out} holds something already: give a new folder, or remove it first")
    merged = merge_adapter(read_weights(folder), folder / ADAPTER)
    out.parent.mkdir(parents=True, exist_ok=True)
    # Beside `out`, so that the last step is one rename.
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch:
        whole = Path(scratch) / "model"
        whole.mkdir()
        (whole / "model.safetensors").write_bytes(save(merged, metadata={"format": "pt"}))
        config = read_json(folder / "config.json") | {"dtype": "float32"}
        (whole / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copyfile(folder / name, whole / name)
        shutil.copyfile(folder / ADAPTER / FILE, whole / FILE)
        whole.rename(out)
    return out


def from_spec(target: str, options: Mapping[str, str]) -> EmbeddedVerdictReader:
    """The reader of `verdict:embedded:crafting`, or of a folder of that layout. Raises `CriticSpecError`."""
    allow("verdict:embedded", options, "low", "high", "score")
    return EmbeddedVerdictReader(shipped_folder(needed("verdict:embedded", target, "crafting"), ADAPTER))


_WORD = 8
"""Room for a verdict word."""
