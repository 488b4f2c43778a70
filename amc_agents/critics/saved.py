"""Read the JSON file of a saved critic; every fault of the file is a `CheckpointError` in one line."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from amc_agents.errors import CheckpointError
from amc_agents.files import read_json_object
from amc_agents.quoting import quoted

TokenCount = Annotated[int, Field(gt=0, lt=1 << 31)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class SavedFields(BaseModel):
    """Fields of a file, of exactly these types. Other fields are ignored."""

    model_config = ConfigDict(strict=True)


def read_saved(
    path: Path, schema: type[SavedFields], what: str, *, kind: str, versions: Collection[int]
) -> dict[str, Any]:
    """Read and check the fields of a file that the library wrote.

    Args:
        path: the file.
        schema: the types of its fields.
        what: what the file should be, for messages, such as "a value checkpoint".
        kind: the expected value of the field `kind`.
        versions: the values of the field `version` that this library reads.

    Raises:
        CheckpointError: the file cannot be read or parsed, its kind or version differs, or a field has the wrong type.
    """
    content = read_json_object(path, remedy=f"expected {what}; save it again")
    if "kind" not in content or "version" not in content:
        raise CheckpointError(
            f"{path} is not {what}: expected the fields `kind` and `version`, got {quoted(content, 200)}"
        )
    if content["kind"] != kind or content["version"] not in versions:
        raise CheckpointError(
            f"{path}: kind {quoted(content['kind'], 40)} version {quoted(content['version'], 40)}, expected "
            f"{quoted(kind)} version {' or '.join(map(str, versions))}: train the critic again, or use the library "
            "version that wrote it"
        )
    try:
        return schema.model_validate(content).model_dump()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field, value = ".".join(map(str, first["loc"])), quoted(first["input"])
        raise CheckpointError(f"{path} is not {what}: {field}: {first['msg']}, got {value}") from None
