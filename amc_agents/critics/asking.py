"""A chat model that a critic asks: from any event loop, never streamed, counted, its failures the critic's.

It is asked by its sync methods, in threads that nothing waits for once their time is up. The connections of an async
client belong to the event loop of their first use, and clients of one provider share them (LangChain's of OpenAI do):
asked in async, a critic would fail in the second `asyncio.run`; asked on a loop of its own, it would meet the
connections of the policy's loop.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig

from amc_agents.concurrency.blocking import BlockingCalls
from amc_agents.critics.options import number
from amc_agents.errors import ConfigurationError, CriticError, CriticSpecError
from amc_agents.quoting import cause_of, excerpt, keep_secret, keep_secrets_of
from amc_agents.usage import LANGCHAIN_COUNTS, Usage, record, reported_usage

PATIENCE = 180.0
"""Seconds that an answer may take where nothing is said: enough for a model that thinks for long."""


class AskedModel:
    """A chat model as a critic asks it, from any thread and event loop.

    Inside a graph its tokens are not streamed to the graph's caller; tracers see every call.

    Args:
        model: the chat model; a copy that never streams is asked.
        who: asks, for the errors' messages.
        run_name: of its calls, for tracers.
        name: of the model, as `provider:name`; "": what it calls itself.
        max_concurrent: questions under way at the same time.
        timeout: seconds within which an answer has to be complete, LangChain's own retries included.
        recorded: whether each call is counted with the meter in use; False where whoever asks does so.
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
        """All that it was asked so far."""
        # Under stream_mode="messages" a model would stream, and many servers then report no tokens.
        self.model = model.model_copy(update={"disable_streaming": True})
        self._who, self._run_name, self._recorded = who, run_name, recorded
        self._settings = dict(settings or {})
        self._timeout = timeout
        self._calls = BlockingCalls(f"amc-{run_name}", max_concurrent, timeout)
        keep_secrets_of(self.model)

    async def ask(self, conversation: Sequence[BaseMessage]) -> AIMessage:
        """The model's answer.

        Raises:
            CriticError: the call failed, after LangChain's own retries, or took too long.
        """
        told = RunnableConfig(tags=list(_TAGS), run_name=self._run_name)
        call = partial(self.model.invoke, list(conversation), told, **self._settings)
        try:
            answer = await self._calls.run(call)
        except Exception as error:  # each provider's package has errors of its own
            self._count(Usage(calls=1, missing=1), self.name)
            raise self._failure(error) from cause_of(error)
        self._count(usage_of(answer), self._answering(answer))
        return answer

    def _failure(self, error: Exception) -> CriticError:
        if isinstance(error, TimeoutError):
            return CriticError(
                f"{self._who} gave no whole answer within {self._timeout:g} s: is its server overloaded or stuck? "
                "Allow more by timeout="
            )
        said = excerpt(str(error))
        return CriticError(f"{self._who} failed: {type(error).__name__}" + (f": {said}" if said else ""))

    def _answering(self, answer: AIMessage) -> str:
        """`provider:name` as the answer says, which may be more exact than what was asked for."""
        told = answer.response_metadata
        name = told.get("model_name") or told.get("model")
        if not name:
            return self.name
        provider = told.get("model_provider") or self.name.rpartition(":")[0].partition(":")[0]
        return f"{provider}:{name}" if provider else name

    def _count(self, used: Usage, model: str) -> None:
        self.usage += used
        if self._recorded:
            record("critic", used, model=model)


def name_of(model: BaseChatModel) -> str:
    """What a model calls itself, or its class."""
    names = (getattr(model, attribute, None) for attribute in ("model_name", "model"))
    return next((name for name in names if isinstance(name, str) and name), type(model).__name__)


def usage_of(answer: AIMessage) -> Usage:
    """Usage of one answer, as the answer reports it."""
    return reported_usage(answer.usage_metadata, LANGCHAIN_COUNTS)


def made_model(name: str, **options: Any) -> BaseChatModel:
    """LangChain's chat model of a name, `provider:model`.

    Raises:
        ConfigurationError: there is no such model, package or key.
    """
    from langchain.chat_models import init_chat_model

    try:
        made: BaseChatModel = init_chat_model(name, **options)
    except Exception as error:  # each provider's package has errors of its own for a missing key
        raise ConfigurationError(f"the chat model {name!r} could not be made: {excerpt(str(error))}") from cause_of(
            error
        )
    return made


def chat_options(kind: str, options: Mapping[str, str]) -> dict[str, Any]:
    """What base_url=, key_env= and timeout= in a critic's string mean to `made_model`. Raises `CriticSpecError`."""
    found: dict[str, Any] = {}
    if "timeout" in options:
        found["timeout"] = number(kind, options, "timeout", 0.0, least=0.001)
    if "base_url" in options:
        found["base_url"] = options["base_url"]
    if "key_env" in options:
        found["api_key"] = key_of(f"critic kind {kind!r}", options["key_env"])
    return found


def key_of(who: str, variable: str) -> str:
    """The key in an environment variable. Raises `CriticSpecError` where there is none."""
    if variable not in os.environ:
        raise CriticSpecError(f"{who}: the environment variable {variable!r} (key_env) is not set here")
    keep_secret(os.environ[variable])
    return os.environ[variable]


_TAGS = ("nostream", "critic")
"""LangGraph keeps the tokens of runs with the first out of its message stream."""
