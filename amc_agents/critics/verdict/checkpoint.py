"""The prompt format of verdicts, and the checkpoint of a model that was trained to give them.

The prompt of a verdict consists of the append-only rounds of `critics/render.py` and a final question, which belongs to
no round: the prompt of the next state continues the rounds, not the question. So a server's prefix cache contains all
rounds, and a score costs only its new round and the question. (A question after every round, like the marker of value
models, would teach an untrained model by its own prompt that questions stay unanswered, so that both words would lose
probability.) A model that is trained on all states in one pass has its question as the rounds' marker, and an empty
question here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from amc_agents.critics.render import DIALOGUE, PromptFormat, filled_round
from amc_agents.critics.saved import (
    Golden,
    Number,
    SavedFields,
    TokenCount,
    TokenId,
    allowed_deviation,
    in_lines,
    read_saved,
)
from amc_agents.critics.server.served import FolderKind
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.models.tokenizers import NAME as TOKENIZER
from amc_agents.models.tokenizers import Template, Tokenize, segments_from_json, segments_to_json
from amc_agents.quoting import excerpt, quoted
from amc_agents.types import FloatArray, Trajectory

FILE = "amc_verdict.json"
"""Name of the file in a checkpoint's folder."""
VERSION = 1

SERVED = FolderKind(
    file=TOKENIZER,
    fetched=(FILE, TOKENIZER),
    folder="a model's folder",
    needed="tokenizer",
    example="path/to/model",
)
"""The folder of any served model; a model that was trained for verdicts also has `amc_verdict.json`."""

Words = tuple[str, str]
"""The words for success and for failure."""

VerdictPrompt = tuple[str, ...]
"""Texts of a prompt, tokenized separately: the task, one text per round, and the question, which may be empty."""


@dataclass(frozen=True)
class VerdictFormat:
    """The format of a verdict's prompt.

    Raises:
        ConfigurationError: a template is invalid.
    """

    rounds: PromptFormat
    """Format of the task and the rounds, append-only."""
    question: str
    """Template of the question after the newest round, with the fields {good} and {bad}; the verdict is the text that
    follows. Empty if the rounds' marker is the question."""
    pending: str = ""
    """Template of a newest round without observation, with the fields {turn} or {action}; "": as any other round. Must
    be the beginning of a whole round, so that prompts stay append-only."""

    def __post_init__(self) -> None:
        """Check the fields of both templates."""
        used = set(Template.parse(self.question, "a verdict's question").fields)
        if used - {"good", "bad"}:
            raise ConfigurationError(
                f"a verdict's question may have the fields {{good}} and {{bad}}, got {sorted(used)}"
            )
        if self.pending and not self.rounds.round.startswith(self.pending):
            raise ConfigurationError(
                f"a pending round {quoted(self.pending)} must be the beginning of a complete round, "
                f"{quoted(self.rounds.round)}"
            )

    def prompt(self, trajectory: Trajectory, words: Words) -> VerdictPrompt:
        """Return the T + 2 texts of the newest state's prompt."""
        return (*self.segments(trajectory), self.filled_question(words))

    def filled_question(self, words: Words) -> str:
        """Return the question with the words filled in, as plain template text."""
        return str(Template.parse(self.question, "a verdict's question").fill(good=words[0], bad=words[1]))

    def segments(self, trajectory: Trajectory) -> tuple[str, ...]:
        """Return the T + 1 texts before the question: the task and one text per round."""
        texts = self.rounds.segments(trajectory)
        if not self.pending or not trajectory.steps or trajectory.steps[-1].observation:
            return texts
        pending = Template.parse(self.pending, "a pending round")
        return (*texts[:-1], filled_round(pending, trajectory.steps[-1]))


@dataclass(frozen=True)
class VerdictCheckpoint:
    """The JSON file next to the weights of a model that was trained for verdicts."""

    prompt_format: VerdictFormat
    words: Words
    """The words for success and for failure."""
    max_tokens: int | None
    """Maximum tokens of a prompt; beyond it, older rounds are dropped."""
    prefix_ids: tuple[int, ...]
    """Token ids before the first text (beginning of text)."""
    golden: tuple[Golden, ...]
    """Prompts, whose last segment is the question, and their log-odds in training."""
    tolerance: float = 1e-3
    """Allowed difference of log-odds from the golden log-odds."""
    base_model_hash: str = ""
    """`weights_hash` of the base model's folder."""
    data_hash: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: str | Path) -> Path:
        """Write `amc_verdict.json` into a folder."""
        values = {
            "kind": "amc-verdict",
            "version": VERSION,
            "format": self.prompt_format.rounds.to_json(),
            "question": self.prompt_format.question,
            "pending": self.prompt_format.pending,
            "words": list(self.words),
            "max_tokens": self.max_tokens,
            "prefix_ids": list(self.prefix_ids),
            "tolerance": self.tolerance,
            "base_model_hash": self.base_model_hash,
            "data_hash": self.data_hash,
            "settings": self.settings,
            "metrics": self.metrics,
            "golden": [
                {
                    "segments": segments_to_json(golden.segments),
                    "token_ids": list(golden.token_ids),
                    "log_odds": golden.score,
                }
                for golden in self.golden
            ],
        }
        path = Path(folder) / FILE
        path.write_text(in_lines(values))
        return path

    @classmethod
    def load(cls, folder: str | Path) -> VerdictCheckpoint:
        """Read a folder's `amc_verdict.json`. Raises `CheckpointError` if it is missing or invalid."""
        path = Path(folder) / FILE
        if not path.is_file():
            raise CheckpointError(f"{path} does not exist: expected the folder of a model trained for verdicts")
        values = read_saved(path, _Saved, "a verdict checkpoint", kind="amc-verdict", versions=(VERSION,))
        good, bad = values["words"]
        try:
            return cls(
                prompt_format=VerdictFormat(
                    PromptFormat.from_json(values["format"]), values["question"], values["pending"]
                ),
                words=(good, bad),
                max_tokens=values["max_tokens"],
                prefix_ids=tuple(values["prefix_ids"]),
                golden=tuple(
                    Golden(segments_from_json(entry["segments"]), tuple(entry["token_ids"]), entry["log_odds"])
                    for entry in values["golden"]
                ),
                tolerance=values["tolerance"],
                base_model_hash=values["base_model_hash"],
                data_hash=values["data_hash"],
                settings=values["settings"],
                metrics=values["metrics"],
            )
        except (CheckpointError, TypeError, ValueError) as error:  # an invalid format
            raise CheckpointError(f"{path}: {excerpt(str(error), 300)}") from error

    def check_prompts(self, tokenize: Tokenize, where: str) -> None:
        """Compare token ids of the golden prompts with those of training. Raises `CheckpointError`."""
        for number, golden in enumerate(self.golden):
            ids = self.prefix_ids + tuple(token for text in golden.segments for token in tokenize(text))
            if ids != golden.token_ids:
                raise CheckpointError(
                    f"{where}: golden prompt {number} gives other token ids than in training. Likely cause: another "
                    "tokenizer than the checkpoint's"
                )

    def check_log_odds(
        self, log_odds: Sequence[float] | FloatArray, where: str, tolerance: float | None = None
    ) -> None:
        """Compare log-odds `[golden]` with the golden log-odds. Raises `CheckpointError` with likely causes."""
        scores = [golden.score for golden in self.golden]
        tolerance, expected = (
            allowed_deviation(scores, self.tolerance) if tolerance is None else tolerance,
            np.array(scores),
        )
        actual = np.asarray(log_odds, dtype=np.float64)
        if actual.shape == expected.shape and np.all(np.abs(actual - expected) <= tolerance):
            return
        raise CheckpointError(
            f"{where}: golden log-odds differ: expected {quoted(np.round(expected, 4).tolist(), 32)}, got "
            f"{quoted(np.round(actual, 4).tolist(), 32)} (tolerance {tolerance}). Likely cause: other weights (the "
            "base model without its adapter), log-probabilities that are not the model's own (vLLM: --logprobs-mode "
            "raw_logprobs), or a number type of lower precision (TF32 products on a GPU included): serve the model "
            "in the checkpoint's number type, or allow the difference by tolerance="
        )


class _SavedGolden(SavedFields):
    segments: list[str | list[str]]
    token_ids: list[TokenId]
    log_odds: Number


class _Saved(SavedFields):
    """`amc_verdict.json`."""

    format: dict[str, Any]
    question: str
    pending: str = ""
    words: Annotated[list[str], Field(min_length=2, max_length=2)]
    max_tokens: TokenCount | None
    prefix_ids: list[TokenId]
    golden: list[_SavedGolden]
    tolerance: Annotated[Number, Field(ge=0)]
    base_model_hash: str
    data_hash: str
    settings: dict[str, Any]
    metrics: dict[str, Any]


def beginning_of(folder: Path) -> tuple[int, ...]:
    """Return the tokens that a folder's tokenizer puts before every text (beginning of text), as in training."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    whole, bare = (tokenizer.encode("a", add_special_tokens=special).ids for special in (True, False))
    # Tokens after the text (end of text) are dropped, since they would end the prompt before the answer.
    start = next((at for at in range(len(whole)) if whole[at : at + len(bare)] == bare), 0)
    return tuple(whole[:start])


STEPWISE = VerdictFormat(
    rounds=PromptFormat(
        name="verdict",
        opening="{instruction}",
        round="\n{turn}\nObservation: {observation}",
        marker="\n",
    ),
    question=(
        "\nJudge this attempt as it stands, its newest action above all. Say {good} if the task will probably be "
        "solved from here, {bad} if it will probably fail. One word.\nVerdict:"
    ),
)
"""In plain words, for any language model."""

STEP = VerdictFormat(
    rounds=PromptFormat(
        name="verdict-step",
        opening="{instruction}",
        round="\n{turn}\nObservation: {observation}",
        marker="\n",
    ),
    question="This step is",
    pending="\n{turn}\n",
)
"""For trained models: short, with the words that end a reflection."""

DIALOGUE_STEP = VerdictFormat(rounds=DIALOGUE, question="<|assistant|>", pending="{turn}<|end|>")
"""For the embedded model: after its turn, it continues as the assistant in place of the world's answer."""

DIALOGUE_ACTIONS = VerdictFormat(
    rounds=replace(DIALOGUE, name="dialogue-actions", round=DIALOGUE.round.replace("{turn}", "Action: {action}")),
    question=DIALOGUE_STEP.question,
    pending="Action: {action}<|end|>",
)
"""`DIALOGUE_STEP` without thoughts, so that a policy's misreadings cannot mislead the critic."""
