"""Export an embedded value model, policy and adapter merged, for vLLM and transformers; needs no torch."""

from __future__ import annotations

from pathlib import Path

from amc_agents.critics.value.checkpoint import FILE
from amc_agents.critics.value.embedded import ADAPTER, load_checkpoint
from amc_agents.models.embedded.export import export_merged


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
    adapter = Path(folder) / ADAPTER
    load_checkpoint(Path(folder), adapter)
    copied = [*(Path(folder) / name for name in _TOKENIZER), adapter / FILE]
    # A classifier has no language-model head.
    without = ["lm_head.weight"]
    return export_merged(Path(folder), adapter, Path(out), config=_CLASSIFIER, copied=copied, without=without)


_CLASSIFIER = {
    "architectures": ["LlamaForSequenceClassification"],
    "id2label": {"0": "LABEL_0"},
    "label2id": {"LABEL_0": 0},
}
"""Changes to the policy's config.json. A single label is transformers' way to write num_labels=1."""
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
