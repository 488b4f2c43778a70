"""Export an embedded value model, policy and adapter merged, for vLLM and transformers; needs no torch."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from amc_agents.critics.value.checkpoint import FILE
from amc_agents.critics.value.embedded import ADAPTER, load_checkpoint
from amc_agents.errors import ConfigurationError
from amc_agents.models.embedded.weights import merge_adapter, read_json, read_weights


def export_embedded_value(folder: str | Path, out: str | Path) -> Path:
    """Write an embedded policy with its merged value adapter, as a sequence classifier in float32.

    vLLM's pooling runner and `AutoModelForSequenceClassification` load the folder, and give the scores of `embedded:`.

    Args:
        folder: the policy's folder, with the adapter in `value/`.
        out: the folder to write, atomically; it must be new or empty.

    Returns:
        `out`.

    Raises:
        CheckpointError: `folder` is not a policy's folder, or the adapter was trained on other weights.
        ConfigurationError: `out` is not empty.
    """
    folder, out = Path(folder), Path(out)
    adapter = folder / ADAPTER
    load_checkpoint(folder, adapter)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"{out} is not empty: choose another folder, or remove it first")
    out.parent.mkdir(parents=True, exist_ok=True)
    # In the same parent folder, so that a rename completes the export.
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch:
        whole = Path(scratch) / "model"
        whole.mkdir()
        _write(folder, adapter, whole)
        whole.rename(out)
    return out


def _write(folder: Path, adapter: Path, out: Path) -> None:
    from safetensors.numpy import save

    merged = merge_adapter(read_weights(folder), adapter)
    # A classifier has no language-model head.
    merged.pop("lm_head.weight", None)
    (out / "model.safetensors").write_bytes(save(merged, metadata={"format": "pt"}))
    config = read_json(folder / "config.json") | _CLASSIFIER
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in _TOKENIZER:
        shutil.copyfile(folder / name, out / name)
    shutil.copyfile(adapter / FILE, out / FILE)


_CLASSIFIER = {
    "architectures": ["LlamaForSequenceClassification"],
    "dtype": "float32",
    "id2label": {"0": "LABEL_0"},
    "label2id": {"LABEL_0": 0},
}
"""Changes to the policy's config.json. A single label is transformers' way to write num_labels=1."""
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
