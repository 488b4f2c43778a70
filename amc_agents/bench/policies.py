"""The policies of comparisons and collections, by name: small ones that were trained for a world, and any chat model.

A chat model that was not trained for a world is told how to act there, by the world's rules as a system message
(`WorldSpec.rules`).
"""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel

from amc_agents.critics.value.checkpoint import weights_hash
from amc_agents.errors import ConfigurationError
from amc_agents.models.embedded import EmbeddedChatModel, model_folder

TRANSFORMERS = "hf:"


def is_embedded(name: str) -> bool:
    """Return whether a policy is a shipped model or a folder of that layout, which was trained for its world."""
    return ":" not in name


def policy_model(name: str, temperature: float) -> BaseChatModel:
    """Return a policy as a chat model.

    Args:
        name: a shipped model's name or a folder of that layout; `hf:FOLDER`, a transformers chat model; or
            `provider:model`, any LangChain chat model, with its key in the environment.
        temperature: sampling temperature.

    Raises:
        ConfigurationError: there is no such model.
    """
    if is_embedded(name):
        model_folder(name)
        return EmbeddedChatModel(model=name, temperature=temperature)
    if name.startswith(TRANSFORMERS):
        from amc_agents.models.transformers_chat import TransformersChatModel

        return TransformersChatModel(model=name.removeprefix(TRANSFORMERS), temperature=temperature)
    try:
        from langchain.chat_models import init_chat_model

        model: BaseChatModel = init_chat_model(name, temperature=temperature)
    except Exception as error:  # Each provider has its own, such as for a missing key.
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigurationError(f"the policy {name} cannot be used: {cause}") from error
    return model


def identity_of(name: str) -> dict[str, Any]:
    """Return what identifies a policy in stored settings."""
    if not is_embedded(name):
        return {"policy": name}
    folder = model_folder(name)
    return {"policy": folder.name, "policy_weights": weights_hash(folder)}
