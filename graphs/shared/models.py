"""The chat model and the critics of the graphs.

Environment variables choose other models than the package's: `AMC_MODEL=openai:gpt-5-mini` (any chat model of
`init_chat_model`) and `AMC_CRITIC=vllm:http://127.0.0.1:8000` (any critic string).
"""

from __future__ import annotations

import os

from langchain_core.language_models import BaseChatModel

from amc_agents.critics.allowed import AllowedCritics
from amc_agents.models.embedded import EmbeddedChatModel

OWN_MODEL = os.environ.get("AMC_MODEL")
"""Name of the user's model, or None for the package's."""
CRITICS = AllowedCritics({"embedded:crafting": "embedded:crafting", "uniform": "uniform"},
                         hosts=os.environ.get("AMC_CRITIC_HOSTS", "").split())  # fmt: skip
"""Critics that a run may name in its context: the package's, and those on the servers in AMC_CRITIC_HOSTS."""
CRITIC = None if "AMC_CRITIC" in os.environ else "embedded:crafting"
"""The critic of a run that names none; None stands for the critic that AMC_CRITIC names."""
RULES = """Play a crafting world: one thought and one command per turn, in the form
Thought: what is needed next
Action: the command
Commands: `get 2 clay` for items that no recipe makes, a listed crafting command word for word, `inventory`."""


def chat_model(temperature: float) -> BaseChatModel:
    """Return the model that `AMC_MODEL` names, else the package's."""
    if OWN_MODEL:
        from langchain.chat_models import init_chat_model

        return init_chat_model(OWN_MODEL, temperature=temperature)
    model = EmbeddedChatModel(temperature=temperature)
    model.invoke("hello")  # Load the weights now, not inside the server's event loop.
    return model
