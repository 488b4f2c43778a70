"""Write an embedded model with a merged adapter as a folder that vLLM and transformers can load; needs no torch."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from amc_agents.errors import ConfigurationError
from amc_agents.models.embedded.weights import merge_adapter, read_json, read_weights


def export_merged(
    folder: Path,
    adapter: Path,
    out: Path,
    *,
    config: Mapping[str, Any],
    copied: Iterable[Path],
    without: Iterable[str] = (),
) -> Path:
    """Merge an adapter into a policy and write the model in float32, atomically.

    Args:
        folder: the policy's folder.
        adapter: the adapter's folder.
        out: the folder to write; it must be new or empty.
        config: changes to the policy's config.json.
        copied: further files of the new folder.
        without: names of tensors to leave out.

    Returns:
        `out`.

    Raises:
        CheckpointError: a folder is not a policy's or an adapter's, or they do not match.
        ConfigurationError: `out` is not empty.
    """
    from safetensors.numpy import save

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"{out} is not empty: choose another folder, or remove it first")
    merged = merge_adapter(read_weights(folder), adapter)
    for name in without:
        merged.pop(name, None)
    out.parent.mkdir(parents=True, exist_ok=True)
    # In the same parent folder, so that a rename completes the export.
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch:
        model = Path(scratch) / "model"
        model.mkdir()
        (model / "model.safetensors").write_bytes(save(merged, metadata={"format": "pt"}))
        settings = read_json(folder / "config.json") | {"dtype": "float32", **config}
        (model / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        for file in copied:
            shutil.copyfile(file, model / file.name)
        model.rename(out)
    return out
