"""Find the checkpoint of a served model: its small files (format, golden scores, tokenizer), without the weights."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from amc_agents.critics.tokenizing import TemplateTokenizer, Tokenize
from amc_agents.critics.value.checkpoint import FILE
from amc_agents.errors import CheckpointError, CriticSpecError
from amc_agents.models.tokenizer_file import NAME as TOKENIZER
from amc_agents.models.tokenizer_file import TokenizerFile
from amc_agents.quoting import excerpt, quoted

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
