"""Train full matrices, for models so small that a low-rank adapter lacks capacity.

The change is saved as a LoRA adapter of full rank, which is loaded, merged and shipped like any adapter.
"""

from __future__ import annotations

from typing import Any

from amc_agents.errors import MissingExtra

try:
    import torch
    from peft import LoraConfig, get_peft_model
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error

from amc_agents.training.value.model import quiet

Weights = dict[str, torch.Tensor]
"""Name of a linear layer -> its weights."""


def train_matrices(model: Any) -> Weights:
    """Make only the matrices of the linear layers trainable, without the output layer.

    Args:
        model: a causal language model.

    Returns:
        Copies of the current matrices.
    """
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    before = {}
    for name, layer in _layers(model).items():
        layer.weight.requires_grad_(True)
        before[name] = layer.weight.detach().clone()
    return before


def change_as_adapter(model: Any, before: Weights) -> Any:
    """Restore the original weights and move the change into an adapter.

    Args:
        model: a causal language model with trained matrices; its own weights are restored.
        before: the return value of `train_matrices`.

    Returns:
        A `PeftModel` equivalent to the trained model. Each change is factored by its singular values
        (B A = U sqrt(S) sqrt(S) V^T), so that both factors have the same scale and fit half precision.
    """
    layers = _layers(model)
    change = {name: (layers[name].weight.detach() - weights).double() for name, weights in before.items()}
    rank = max(min(matrix.shape) for matrix in change.values())
    with torch.no_grad():
        for name, weights in before.items():
            layers[name].weight.copy_(weights)
    config = LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=rank, target_modules="all-linear")
    with quiet():
        wrapped: Any = get_peft_model(model, config)
    adapted = dict(wrapped.get_base_model().named_modules())
    with torch.no_grad():
        for name, matrix in change.items():
            left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
            root, layer = sizes.sqrt(), adapted[name]
            a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
            a.zero_()
            b.zero_()
            a[: len(root)] = (root[:, None] * right).to(a)
            b[:, : len(root)] = (left * root).to(b)
    return wrapped


def _layers(model: Any) -> dict[str, Any]:
    output = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not output
    }
