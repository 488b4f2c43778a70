"""The shipped value model as a folder of its own, for vLLM and transformers: policy and adapter merged, no torch."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from amc_agents.critics.value.checkpoint import FILE, ValueCheckpoint, weights_hash
from amc_agents.critics.value.embedded import ADAPTER
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.models.embedded.weights import merge_adapter, read_json, read_weights


def export_embedded_value(folder: str | Path, out: str | Path) -> Path:
    """Writes a shipped policy with its value adapter merged in, as a sequence classifier in float32.

    vLLM's pooling runner and `AutoModelForSequenceClassification` load the folder, and give the scores that
    `embedded:` gives.

    Args:
        folder: the policy's folder, its adapter in `value/`.
        out: the folder to write; it must not exist yet, or be empty. It appears whole or not at all.

    Returns:
        `out`.

    Raises:
        CheckpointError: `folder` is not such a model, or the adapter was trained on other weights.
        ConfigurationError: `out` holds something already.
    """
    folder, out = Path(folder), Path(out)
    adapter = folder / ADAPTER
    checkpoint = ValueCheckpoint.load(adapter)
    if checkpoint.base_model_hash != weights_hash(folder):
        raise CheckpointError(
            f"the value adapter in {adapter} was trained on other weights than those in {folder}: train it again"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"{out} holds something already: give a new folder, or remove it first")
    out.parent.mkdir(parents=True, exist_ok=True)
    # Beside `out`, so that the last step is one rename.
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
"""What the policy's config.json becomes; the one label is transformers' way to say num_labels=1."""
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
