"""Training of whole matrices: for models so small that an adapter of low rank cannot hold what is to be learnt.

What has changed is kept as a LoRA adapter of full rank: it is loaded, merged and shipped like any other.
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
    """Lets gradients reach the matrices of the linear layers, the output's excepted, and nothing else.

    Args:
        model: a causal language model.

    Returns:
        Copies of these matrices as they are now.
    """
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    before = {}
    for name, layer in _layers(model).items():
        layer.weight.requires_grad_(True)
        before[name] = layer.weight.detach().clone()
    return before


def change_as_adapter(model: Any, before: Weights) -> Any:
    """The model as it was before, with an adapter that makes it what it is now.

    Args:
        model: a causal language model whose matrices have been trained; its own weights are set back.
        before: what `train_matrices` gave.

    Returns:
        A `PeftModel`. Each change is factored by its singular values (B A = U sqrt(S) sqrt(S) V^T), so that both
        factors have the same size, and half precision suits them both.
    """
    layers = _layers(model)
    change = {name: (layers[name].weight.detach() - weights).double() for name, weights in before.items()}
    rank = max(min(one.shape) for one in change.values())
    with torch.no_grad():
        for name, weights in before.items():
            layers[name].weight.copy_(weights)
    config = LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=rank, target_modules="all-linear")
    with quiet():
        wrapped: Any = get_peft_model(model, config)
    adapted = dict(wrapped.get_base_model().named_modules())
    with torch.no_grad():
        for name, one in change.items():
            left, sizes, right = torch.linalg.svd(one, full_matrices=False)
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
