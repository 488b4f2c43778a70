"""The embedded model: a small Llama in numpy, its tokenizer, and the shipped weights.

Names are imported at their first use, so that a critic can use the model without loading LangChain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amc_agents._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from amc_agents.models.embedded.decoder import LlamaScorer
    from amc_agents.models.embedded.llama import NumpyLlama
    from amc_agents.models.embedded.policy import EmbeddedChatModel
    from amc_agents.models.embedded.weights import model_folder
    from amc_agents.models.tokenizers import WordTokenizer

__all__ = ["EmbeddedChatModel", "LlamaScorer", "NumpyLlama", "WordTokenizer", "model_folder"]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "EmbeddedChatModel": "models.embedded.policy",
        "LlamaScorer": "models.embedded.decoder",
        "NumpyLlama": "models.embedded.llama",
        "WordTokenizer": "models.tokenizers",
        "model_folder": "models.embedded.weights",
    },
)
