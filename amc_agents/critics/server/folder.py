"""Where a served model's checkpoint lies: its small files (format, golden scores, tokenizer), without its weights."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from amc_agents.critics.tokenizing import TemplateTokenizer, Tokenize
from amc_agents.critics.value.checkpoint import FILE
from amc_agents.errors import CheckpointError, CriticSpecError
from amc_agents.models.tokenizer_file import NAME as TOKENIZER
from amc_agents.models.tokenizer_file import TokenizerFile
from amc_agents.quoting import excerpt

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Wanted:
    """What kind of folder is looked for."""

    file: str
    """The file that a folder has to hold."""
    fetched: tuple[str, ...]
    """What is fetched of a repository of the Hugging Face hub."""
    folder: str
    """What such a folder is called, in messages."""
    needed: str
    """What is in the file, in messages."""
    example: str
    """A path, in messages."""


VALUE = Wanted(
    file=FILE,
    fetched=(FILE, TOKENIZER, "tokenizer_config.json", "config.json"),
    folder="a folder that `amc train value` wrote",
    needed="prompts' format and golden scores",
    example="path/to/value",
)
"""A value model's."""


def local_folder(
    checkpoint: str | Path | None, model: str | None, wanted: Wanted = VALUE, *, trusted: bool = True
) -> Path | None:
    """The folder that was named: by `checkpoint`, or by a model's name that is such a folder.

    Args:
        checkpoint: a folder.
        model: a model's name.
        wanted: what has to be in it.
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
        if not (Path(checkpoint) / wanted.file).is_file():
            raise CheckpointError(f"checkpoint={checkpoint}: expected {wanted.folder}, with {wanted.file} in it")
        return Path(checkpoint)
    return Path(model) if model and (Path(model) / wanted.file).is_file() else None


def served_folder(model: str, root: str | None, wanted: Wanted = VALUE, *, local: bool = True) -> Path:
    """The folder of a model that a server offers. May ask the Hugging Face hub (`HF_HUB_OFFLINE=1`: its cache alone).

    Args:
        model: its name.
        root: what the server says it was loaded from: a folder, perhaps of another machine, or a repository.
        wanted: what has to be in it.
        local: whether folders of this machine are looked at.

    Raises:
        CheckpointError: it is found neither on this machine nor on the hub.
    """
    names = list(dict.fromkeys(name for name in (model, root) if name))
    for name in names if local else ():
        if (Path(name) / wanted.file).is_file():
            return Path(name)
    tried = [f"{name}: no folder of this machine with {wanted.file}" for name in names]
    for name in filter(_REPOSITORY.fullmatch, names):
        folder, reason = _from_hub(name, wanted)
        if folder is not None:
            return folder
        tried.append(f"{name} on the Hugging Face hub: {reason}")
    raise CheckpointError(
        f"the server has the model {model!r}, but its {wanted.needed} ({wanted.file}) could not be found here: say "
        f"where its folder is, checkpoint={wanted.example}. Looked at: {'; '.join(tried)}"
    )


def tokenizer_of(folder: Path) -> Tokenize:
    """The tokenizer of a checkpoint's folder, adding no special tokens of its own. Raises `CheckpointError`."""
    file = TokenizerFile(folder / TOKENIZER)
    return TemplateTokenizer(file.encode, file.encode_untrusted, file.special.values(), file.unknown_id)


def _from_hub(repository: str, wanted: Wanted) -> tuple[Path | None, str]:
    """The folder of a repository's small files, or the reason why there is none."""
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        folder = Path(snapshot_download(repository, allow_patterns=list(wanted.fetched)))
    except (HfHubHTTPError, HFValidationError, httpx.HTTPError, OSError) as error:
        return None, f"{type(error).__name__}: {excerpt((str(error).strip().splitlines() or [''])[0])}"
    return (folder, "") if (folder / wanted.file).is_file() else (None, f"it has no {wanted.file}")
