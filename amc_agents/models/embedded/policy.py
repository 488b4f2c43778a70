"""The embedded policy: a small language model in numpy as a LangChain chat model, without torch, server or API key."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr

from amc_agents.models.batcher import Batcher
from amc_agents.models.chat import Engine, EngineChatModel
from amc_agents.models.embedded.decoder import EmbeddedDecoder
from amc_agents.models.embedded.llama import NumpyLlama
from amc_agents.models.embedded.weights import model_folder
from amc_agents.models.tokenizers import WordTokenizer


class EmbeddedChatModel(EngineChatModel):
    """A small Llama from a folder, computed in numpy.

    Concurrent calls share batches, and each new turn of a dialogue costs only its new tokens. System messages are
    treated as user messages. See `EngineChatModel` for the settings.
    """

    model: str = "crafting"
    """The name of a shipped model, or a folder with config.json, tokenizer.json and model.safetensors."""

    # The key of the engine, not the engine itself, so that model objects can be copied and pickled.
    _place: tuple[str, Path, int] | None = PrivateAttr(default=None)

    @property
    def _llm_type(self) -> str:
        return "amc-embedded"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": self.model, "temperature": self.temperature, "top_p": self.top_p}

    def _engine(self) -> Engine:
        if self._place is None:
            folder = model_folder(self.model)
            # The modification time is part of the key, so that changed weights are read again.
            self._place = self.model, folder, (folder / "model.safetensors").stat().st_mtime_ns
        return _load(*self._place)


@lru_cache(maxsize=8)
def _load(name: str, folder: Path, written: int) -> Engine:
    """Return the engine of a folder; all model objects share it, with its batches and its prefix cache."""
    tokenizer = WordTokenizer.from_folder(folder)
    return Engine(name, Batcher(EmbeddedDecoder(NumpyLlama.load(folder), tokenizer)), tokenizer)
