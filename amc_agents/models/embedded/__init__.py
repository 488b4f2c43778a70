"""The embedded model: a small Llama in numpy, its tokenizer, and the shipped weights.

Names are imported when they are first used, so that a critic need not load LangChain.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amc_agents.models.embedded.chat import EmbeddedChatModel, model_folder
    from amc_agents.models.embedded.decoder import LlamaScorer
    from amc_agents.models.embedded.llama import NumpyLlama
    from amc_agents.models.embedded.tokenizer import WordTokenizer

__all__ = ["EmbeddedChatModel", "LlamaScorer", "NumpyLlama", "WordTokenizer", "model_folder"]

_HOMES = {
    "EmbeddedChatModel": "chat",
    "LlamaScorer": "decoder",
    "NumpyLlama": "llama",
    "WordTokenizer": "tokenizer",
    "model_folder": "chat",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
