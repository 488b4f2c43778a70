"""The embedded model: a small Llama in numpy, its tokenizer, and the shipped weights.

Names are imported at their first use, so that a critic can use the model without loading LangChain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amc_agents._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from amc_agents.models.embedded.chat import EmbeddedChatModel
    from amc_agents.models.embedded.decoder import LlamaScorer
    from amc_agents.models.embedded.llama import NumpyLlama
    from amc_agents.models.embedded.tokenizer import WordTokenizer
    from amc_agents.models.embedded.weights import model_folder

__all__ = ["EmbeddedChatModel", "LlamaScorer", "NumpyLlama", "WordTokenizer", "model_folder"]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "EmbeddedChatModel": "models.embedded.chat",
        "LlamaScorer": "models.embedded.decoder",
        "NumpyLlama": "models.embedded.llama",
        "WordTokenizer": "models.embedded.tokenizer",
        "model_folder": "models.embedded.weights",
    },
)
