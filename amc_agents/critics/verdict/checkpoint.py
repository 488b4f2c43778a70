"""How a verdict is asked for, and what a model that was trained to give one carries beside its weights.

A verdict's prompt is the rounds of `critics/render.py`, which only grow, and after them one question that belongs to
no round: the next state's prompt continues the rounds, not the question. (With an unanswered question after every
round, where value models have their marker, a model that was not trained for it reads in its own prompt that the
question stays unanswered, and the two words lose their mass.) A server's prefix cache then still holds all rounds, and
a score costs its new round and the question. A model that is trained on all states in one pass has its question as the
rounds' marker, and an empty one here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from amc_agents.critics.render import DIALOGUE, PromptFormat, filled_round
from amc_agents.critics.saved import Number, SavedFields, TokenCount, TokenId, read_saved
from amc_agents.critics.server.folder import FolderKind
from amc_agents.critics.server.golden import Golden
from amc_agents.critics.template import Template, segments_from_json, segments_to_json
from amc_agents.critics.tokenizing import Tokenize
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.models.tokenizer_file import NAME as TOKENIZER
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
"""The folder of any served model: only one that was trained for verdicts has the JSON, too."""

Words = tuple[str, str]
"""The word for success and the word for failure."""

VerdictPrompt = tuple[str, ...]
"""Texts of a prompt, each tokenized on its own: the task's, one per round, and the question (may be empty)."""


@dataclass(frozen=True)
class VerdictFormat:
    """How a trajectory is written, and what is asked about it."""

    rounds: PromptFormat
    """Task and rounds, append-only."""
    question: str
    """Put after the newest round; the verdict is the text that follows. May use {good} and {bad}; "" where the rounds'
    marker asks already."""
    pending: str = ""
    """Template of a newest round whose action has no observation yet, uses {turn} or {action}; "": as any other round.
    A whole round begins with it, so that prompts stay append-only."""

    def __post_init__(self) -> None:
        """Refuse a question that asks for other fields."""
        used = set(Template.parse(self.question, "a verdict's question").fields)
        if used - {"good", "bad"}:
            raise ConfigurationError(
                f"a verdict's question may use {{good}} and {{bad}}, got the fields {sorted(used)}"
            )
        if self.pending and not self.rounds.round.startswith(self.pending):
            raise ConfigurationError(
                f"a pending round {self.pending!r} must be the beginning of a whole one, {self.rounds.round!r}"
            )

    def prompt(self, trajectory: Trajectory, words: Words) -> VerdictPrompt:
        """The texts of the newest state's prompt, T + 2 of them."""
        return (*self.segments(trajectory), self.asked(words))

    def asked(self, words: Words) -> str:
        """The question, its words filled in: a template's text as a whole."""
        return str(Template.parse(self.question, "a verdict's question").fill(good=words[0], bad=words[1]))

    def segments(self, trajectory: Trajectory) -> tuple[str, ...]:
        """The texts before the question, T + 1 of them: the task's, then one per round."""
        texts = self.rounds.segments(trajectory)
        if not self.pending or not trajectory.steps or trajectory.steps[-1].observation:
            return texts
        pending = Template.parse(self.pending, "a pending round")
        return (*texts[:-1], filled_round(pending, trajectory.steps[-1]))


@dataclass(frozen=True)
class VerdictCheckpoint:
    """The JSON beside the weights of a model that was trained to give verdicts."""

    prompt_format: VerdictFormat
    words: Words
    """What it says of success and of failure."""
    max_tokens: int | None
    """The most tokens of a prompt; older rounds are dropped beyond it."""
    prefix_ids: tuple[int, ...]
    """Ids put before the first text (beginning of text)."""
    golden: tuple[Golden, ...]
    """Prompts (the question is the last segment) and the log-odds that the trained model gave them."""
    tolerance: float = 1e-3
    """How far log-odds may be from their golden ones."""
    base_model_hash: str = ""
    """`weights_hash` of the folder that was trained on."""
    data_hash: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: str | Path) -> Path:
        """Writes `amc_verdict.json` into a folder."""
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
                    "segments": segments_to_json(one.segments),
                    "token_ids": list(one.token_ids),
                    "log_odds": one.score,
                }
                for one in self.golden
            ],
        }
        path = Path(folder) / FILE
        # One line per entry: readable, and no line per token id.
        lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
        path.write_text(f"{{\n{lines}\n}}\n")
        return path

    @classmethod
    def load(cls, folder: str | Path) -> VerdictCheckpoint:
        """Reads a folder's `amc_verdict.json`. Raises `CheckpointError` where it is missing or not understood."""
        path = Path(folder) / FILE
        if not path.is_file():
            raise CheckpointError(f"{path} does not exist: expected the folder of a model trained to give verdicts")
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
                    Golden(segments_from_json(one["segments"]), tuple(one["token_ids"]), one["log_odds"])
                    for one in values["golden"]
                ),
                tolerance=values["tolerance"],
                base_model_hash=values["base_model_hash"],
                data_hash=values["data_hash"],
                settings=values["settings"],
                metrics=values["metrics"],
            )
        except (CheckpointError, TypeError, ValueError) as error:  # of the format
            raise CheckpointError(f"{path}: {excerpt(str(error), 300)}") from error

    def check_prompts(self, tokenize: Tokenize, where: str) -> None:
        """Compares the tokenizer with the one that wrote the golden prompts. Raises `CheckpointError`."""
        for number, one in enumerate(self.golden):
            ids = self.prefix_ids + tuple(token for text in one.segments for token in tokenize(text))
            if ids != one.token_ids:
                raise CheckpointError(
                    f"{where}: golden prompt {number} gives other token ids than in training. Likely cause: another "
                    "tokenizer than the checkpoint's"
                )

    def check_log_odds(
        self, log_odds: Sequence[float] | FloatArray, where: str, tolerance: float | None = None
    ) -> None:
        """Compares `[golden]` log-odds with the golden ones. Raises `CheckpointError` that names likely causes."""
        tolerance = self.tolerance if tolerance is None else tolerance
        expected, actual = np.array([one.score for one in self.golden]), np.asarray(log_odds, dtype=np.float64)
        if actual.shape == expected.shape and np.all(np.abs(actual - expected) <= tolerance):
            return
        raise CheckpointError(
            f"{where}: golden log-odds differ: expected {quoted(np.round(expected, 4).tolist(), 32)}, got "
            f"{quoted(np.round(actual, 4).tolist(), 32)} (tolerance {tolerance}). Likely cause: other weights (the "
            "base model without its adapter), log-probabilities that are not the model's own (vLLM: --logprobs-mode "
            "raw_logprobs), or a number type with less precision: serve it in the checkpoint's own, or accept the loss "
            "by tolerance="
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
    """The tokens that a folder's tokenizer puts before every text (beginning of text), as in the model's training."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    whole, bare = (tokenizer.encode("a", add_special_tokens=special).ids for special in (True, False))
    # What comes behind the text (end of text) would end the prompt before its question is answered.
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
"""Plain words, for any language model."""

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
"""For models that are trained: the words that end a reflection, and short."""

DIALOGUE_STEP = VerdictFormat(rounds=DIALOGUE, question="<|assistant|>", pending="{turn}<|end|>")
"""The embedded model's: after its own turn, in place of the world's answer, it is asked to speak once more."""

DIALOGUE_ACTIONS = VerdictFormat(
    rounds=replace(DIALOGUE, name="dialogue-actions", round=DIALOGUE.round.replace("{turn}", "Action: {action}")),
    question=DIALOGUE_STEP.question,
    pending="Action: {action}<|end|>",
)
"""The same without thoughts: a policy that misreads what it sees cannot mislead its critic."""
