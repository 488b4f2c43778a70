"""Reads the JSON of a saved critic: every fault of a file is a `CheckpointError` of one line."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from amc_agents.errors import CheckpointError
from amc_agents.quoting import excerpt, quoted

TokenCount = Annotated[int, Field(gt=0, lt=1 << 31)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class SavedFields(BaseModel):
    """Fields of a file, of exactly these types; others are left alone."""

    model_config = ConfigDict(strict=True)


def read_saved(
    path: Path, schema: type[SavedFields], what: str, *, kind: str, versions: Collection[int]
) -> dict[str, Any]:
    """The fields of a file that the library wrote.

    Args:
        path: the file.
        schema: the types of its fields.
        what: what it is to be, for messages, such as "a value checkpoint".
        kind: what its field `kind` says.
        versions: those that this library reads.

    Raises:
        CheckpointError: it cannot be read, is cut off, of another kind or version, or a field has another type.
    """
    try:
        plain = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is not {what}: it is damaged or cut off ({excerpt(str(error))}). Save it again"
        ) from error
    if not isinstance(plain, dict) or "kind" not in plain or "version" not in plain:
        raise CheckpointError(
            f"{path} is not {what}: expected an object with `kind` and `version`, got {quoted(plain)}"
        )
    if plain["kind"] != kind or plain["version"] not in versions:
        raise CheckpointError(
            f"{path}: kind {quoted(plain['kind'], 40)} version {quoted(plain['version'], 40)}, expected {kind!r} "
            f"version {' or '.join(map(str, versions))}: train the critic again, or use the library's version that "
            "made it"
        )
    try:
        return schema.model_validate(plain).model_dump()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place, came = ".".join(map(str, first["loc"])), quoted(first["input"], 80)
        raise CheckpointError(f"{path} is not {what}: {place}: {first['msg']}, got {came}") from None
