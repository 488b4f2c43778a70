"""Chat models as critics: usable from any event loop, without streaming, with usage counts and `CriticError`s.

The model's sync methods are called in threads, which are abandoned after a time-out. Async methods would fail, because
the connections of an async client belong to the event loop of their first use, and clients of a provider share them (as
LangChain's clients of OpenAI do): a second `asyncio.run` would fail, and so would a background loop that meets the
connections of the policy's loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig
from pydantic import SecretStr

from amc_agents.concurrency.gather import BlockingCalls, politely
from amc_agents.critics.spec import number
from amc_agents.errors import BudgetExhausted, ConfigurationError, CriticError, CriticSpecError, UnboundedRequest
from amc_agents.quoting import cause_of, excerpt, keep_secret, keep_secrets_of, quoted
from amc_agents.usage import LANGCHAIN_COUNTS, Usage, record, reported_usage

PATIENCE = 180.0
"""Default seconds for an answer, enough for a long reasoning."""


class CriticChatModel:
    """A chat model of a critic, usable from any thread and event loop.

    Inside a graph its tokens are not streamed to the graph's caller; tracers see every call.

    Args:
        model: the chat model; a copy with streaming disabled is called.
        who: the critic's name, for error messages.
        run_name: name of the calls, for tracers.
        name: the model's name, as `provider:name`; "": the model's own attribute.
        max_concurrent: the most calls in flight.
        timeout: seconds for a complete answer, including LangChain's retries.
        recorded: whether each call is recorded with the current meter; False if the caller records usage.
        settings: further arguments of every call.
    """

    def __init__(
        self,
        model: BaseChatModel,
        *,
        who: str,
        run_name: str,
        name: str = "",
        max_concurrent: int = 16,
        timeout: float = PATIENCE,
        recorded: bool = True,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name or name_of(model)
        self.usage = Usage()
        """Total usage so far."""
        # Under stream_mode="messages" the model would stream, and many servers then report no token counts.
        self.model = model.model_copy(update={"disable_streaming": True})
        self._who, self._run_name, self._recorded = who, run_name, recorded
        self.settings = dict(settings or {})
        """Arguments of every call."""
        self._timeout = timeout
        self._calls = BlockingCalls(f"amc-{run_name}", max_concurrent, timeout)
        keep_secrets_of(self.model)

    async def ask(self, conversation: Sequence[BaseMessage]) -> AIMessage:
        """Return the model's answer. After a rate limit the call is repeated.

        Raises:
            CriticError: the call failed after LangChain's retries, or timed out.
        """
        config = RunnableConfig(tags=list(_TAGS), run_name=self._run_name)
        call = partial(self.model.invoke, list(conversation), config, **self.settings)
        started = threading.Event()
        try:
            answer = await politely(partial(self._calls.run, call, starting=started.set))
        except (BudgetExhausted, UnboundedRequest):
            raise
        except asyncio.CancelledError:
            # The thread cannot be stopped, so the call is paid for.
            if started.is_set():
                self._count(Usage(calls=1, missing=1), self.name)
            raise
        except Exception as error:  # each provider's package has its own exceptions
            self._count(Usage(calls=1, missing=1), self.name)
            raise self._failure(error) from cause_of(error)
        self._count(usage_of(answer), self._answering_model(answer))
        return answer

    def _failure(self, error: Exception) -> CriticError:
        if isinstance(error, TimeoutError):
            return CriticError(
                f"{self._who} gave no complete answer within {self._timeout:g} s: is its server overloaded or stuck? "
                "Set a larger timeout="
            )
        detail = excerpt(str(error))
        cause = type(error).__name__ + (f": {detail}" if detail else "")
        return CriticError(f"{self._who} failed: {cause}{_REMEDY}")

    def _answering_model(self, answer: AIMessage) -> str:
        """`provider:name` from the answer, which may be more precise than the requested name."""
        metadata = answer.response_metadata
        name = metadata.get("model_name") or metadata.get("model")
        if not name:
            return self.name
        provider = metadata.get("model_provider") or self.name.rpartition(":")[0].partition(":")[0]
        return f"{provider}:{name}" if provider else name

    def _count(self, used: Usage, model: str) -> None:
        self.usage += used
        if self._recorded:
            record("critic", used, model=model)


def name_of(model: BaseChatModel) -> str:
    """Return the name of a chat model: its attribute `model_name` or `model`, or its class."""
    names = (getattr(model, attribute, None) for attribute in ("model_name", "model"))
    return next((name for name in names if isinstance(name, str) and name), type(model).__name__)


def usage_of(answer: AIMessage) -> Usage:
    """Return the usage that an answer reports."""
    return reported_usage(answer.usage_metadata, LANGCHAIN_COUNTS)


def build_model(name: str, **options: Any) -> BaseChatModel:
    """Create LangChain's chat model from a name, `provider:model`.

    Raises:
        ConfigurationError: the model, its package or its key is missing.
    """
    from langchain.chat_models import init_chat_model

    try:
        model: BaseChatModel = init_chat_model(name, **options)
    except Exception as error:  # each provider's package has its own exception for a missing key
        detail = excerpt(str(error))
        raise ConfigurationError(f"the chat model {quoted(name)} could not be created: {detail}") from cause_of(error)
    return model


def chat_options(kind: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of `build_model` from a critic's options base_url=, key_env= and timeout=. Raises `CriticSpecError`."""
    arguments: dict[str, Any] = {}
    if "timeout" in options:
        arguments["timeout"] = number(kind, options, "timeout", 0.0, least=0.001)
    if "base_url" in options:
        arguments["base_url"] = options["base_url"]
    if "key_env" in options:
        arguments["api_key"] = key_of(f"critic kind {quoted(kind)}", options["key_env"])
    return arguments


def key_of(who: str, variable: str) -> SecretStr:
    """Read a key from an environment variable. Raises `CriticSpecError` if it is not set."""
    if variable not in os.environ:
        raise CriticSpecError(f"{who}: the environment variable {quoted(variable)} (key_env) is not set")
    keep_secret(os.environ[variable])
    return SecretStr(os.environ[variable])


_REMEDY = ". Check the model's name, key and base_url, and its server's log"
_TAGS = ("nostream", "critic")
"""LangGraph keeps the tokens of runs tagged "nostream" out of its message stream."""
