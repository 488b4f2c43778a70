"""What a server serves: its models, the rows of its answers, and the checkpoint folder of a model.

A folder has the small files of a checkpoint (format, golden scores, tokenizer); the weights are not needed here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from amc_agents.critics.value.checkpoint import FILE
from amc_agents.errors import CheckpointError, CriticServerError, CriticSpecError
from amc_agents.models.tokenizers import NAME as TOKENIZER
from amc_agents.models.tokenizers import TemplateTokenizer, Tokenize, TokenizerFile
from amc_agents.quoting import excerpt, listed, quoted

LEAST_LOGPROB = -1000.0
"""Smaller numbers are not log-probabilities: vLLM 0.32 writes -9999 over those of neighbouring requests."""
OVERWRITTEN = (
    "vLLM 0.32 writes -9999 over the log-probabilities of requests that share a batch with `logprob_token_ids`: run "
    "verdicts on a separate server, or use a newer vLLM"
)
"""Error text for a row below `LEAST_LOGPROB`."""


class ServedModel(NamedTuple):
    """A model in the list of `/v1/models`."""

    name: str
    root: str | None
    """The folder or repository that the server loaded it from; a folder may be on another machine."""
    limit: int | None
    """Maximum number of tokens that the server accepts."""


def chosen_model(answer: Any, wanted: str | None, url: str) -> ServedModel:
    """The model named `wanted` in the answer of `/v1/models`; None: the only model.

    Raises:
        CriticServerError: the model is not in the list, or the list has several; the message lists them.
    """
    models = served_models(answer, url)
    matches = [model for model in models if wanted in (model.name, None)]
    if len(matches) == 1:
        return matches[0]
    names = listed(sorted(model.name for model in models), 4) or "nothing"
    if wanted is None:
        raise CriticServerError(url, f"expected one model, but it serves {names}: choose with ?model=NAME")
    raise CriticServerError(url, f"model {quoted(wanted)} is not on this server, which serves {names}")


def served_models(answer: Any, url: str) -> list[ServedModel]:
    """All models in the answer of `/v1/models`. Raises `CriticServerError`."""
    cards = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(cards, list):
        raise CriticServerError(url, f"expected a list of models, got {quoted(answer, 200)}")
    models = []
    for card in cards:
        match card:
            case {"id": str(name)}:
                root, limit = card.get("root"), card.get("max_model_len")
            case _:
                raise CriticServerError(url, f"expected a model's `id`, got {quoted(card, 200)}")
        if limit is not None and not (type(limit) is int and limit > 0):
            raise CriticServerError(url, f"expected a number of tokens as `max_model_len`, got {quoted(card, 200)}")
        models.append(ServedModel(name, root if isinstance(root, str) else None, limit))
    return models


def rows_of(answer: Any, name: str, n: int) -> list[dict[str, Any]]:
    """`[n]` rows of an answer's list `name`, sorted by their `index`.

    Raises:
        ValueError: the number of rows differs, or an index is missing, invalid or duplicate.
    """
    rows = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(rows, list):
        raise ValueError(f"expected {n} rows in `{name}`, got {quoted(answer, 200)}")
    if len(rows) != n:
        raise ValueError(f"expected {n} rows in `{name}`, got {len(rows)}: {quoted(answer, 200)}")
    by_index: dict[int, dict[str, Any]] = {}
    for row in rows:
        index = row.get("index") if isinstance(row, dict) else None
        if type(index) is not int or not 0 <= index < n:
            raise ValueError(f"expected an `index` (0 to {n - 1}) in each row of `{name}`, got {quoted(row, 200)}")
        by_index[index] = row
    if len(by_index) != n:
        raise ValueError(f"expected each `index` from 0 to {n - 1} once in `{name}`, got {listed(sorted(by_index))}")
    return [by_index[index] for index in range(n)]


_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class FolderKind:
    """A kind of checkpoint folder."""

    file: str
    """A file that every such folder contains."""
    fetched: tuple[str, ...]
    """Files to download from a repository of the Hugging Face hub."""
    folder: str
    """Description of the folder, for messages."""
    needed: str
    """Description of the file's content, for messages."""
    example: str
    """An example path, for messages."""


VALUE = FolderKind(
    file=FILE,
    fetched=(FILE, TOKENIZER, "tokenizer_config.json", "config.json"),
    folder="a folder that `amc train value` wrote",
    needed="prompts' format and golden scores",
    example="path/to/value",
)
"""The folder of a value model."""


def local_folder(
    checkpoint: str | Path | None, model: str | None, kind: FolderKind = VALUE, *, trusted: bool = True
) -> Path | None:
    """The folder that a user named, by `checkpoint` or by a model name that is a path; None if neither is a folder.

    Args:
        checkpoint: a folder.
        model: a model's name.
        kind: the kind of folder.
        trusted: False where a call has named them: a call may not name folders.

    Raises:
        CheckpointError: `checkpoint` is not such a folder.
        CriticSpecError: a call names a folder.
    """
    if not trusted:
        if checkpoint is not None:
            raise CriticSpecError("a call may not name a folder of this machine (checkpoint=)")
        return None
    if checkpoint is not None:
        if not (Path(checkpoint) / kind.file).is_file():
            raise CheckpointError(f"checkpoint={checkpoint}: expected {kind.folder}, with {kind.file} in it")
        return Path(checkpoint)
    return Path(model) if model and (Path(model) / kind.file).is_file() else None


def served_folder(model: str, root: str | None, kind: FolderKind = VALUE, *, local: bool = True) -> Path:
    """The checkpoint folder of a served model, local or from the Hugging Face hub (`HF_HUB_OFFLINE=1`: from its cache).

    Args:
        model: the model's name.
        root: the folder or repository that the server loaded it from, which may be on another machine.
        kind: the kind of folder.
        local: whether local folders may be read.

    Raises:
        CheckpointError: the folder is neither on this machine nor on the hub.
    """
    names = list(dict.fromkeys(name for name in (model, root) if name))
    for name in names if local else ():
        if (Path(name) / kind.file).is_file():
            return Path(name)
    tried = [f"{name}: no folder of this machine with {kind.file}" for name in names]
    for name in filter(_REPOSITORY.fullmatch, names):
        folder, reason = _from_hub(name, kind)
        if folder is not None:
            return folder
        tried.append(f"{name} on the Hugging Face hub: {reason}")
    raise CheckpointError(
        f"the server has the model {quoted(model)}, but its {kind.needed} ({kind.file}) is not on this machine: "
        f"pass its folder as checkpoint={kind.example}. Tried: {'; '.join(tried)}"
    )


def tokenizer_of(folder: Path) -> Tokenize:
    """Load the tokenizer of a checkpoint folder, without automatic special tokens. Raises `CheckpointError`."""
    file = TokenizerFile(folder / TOKENIZER)
    return TemplateTokenizer(file.encode, file.encode_untrusted, file.special.values(), file.unknown_id)


def _from_hub(repository: str, kind: FolderKind) -> tuple[Path | None, str]:
    """Download a repository's small files; return their folder, or None and the reason."""
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        folder = Path(snapshot_download(repository, allow_patterns=list(kind.fetched)))
    except (HfHubHTTPError, HFValidationError, httpx.HTTPError, OSError) as error:
        return None, f"{type(error).__name__}: {excerpt((str(error).strip().splitlines() or [''])[0])}"
    return (folder, "") if (folder / kind.file).is_file() else (None, f"it has no {kind.file}")
