"""LAC's actor over any chat model: K turns sampled in one request where the model can, else side by side.

Its requests belong to a decision that is still being made: they are traced, and never streamed to the user.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from langchain_core.callbacks import Callbacks
from langchain_core.globals import get_llm_cache
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration
from langchain_core.runnables import RunnableBinding

from amc_agents.concurrency.gather import side_by_side
from amc_agents.critics.server.answers import LEAST_LOGPROB
from amc_agents.decisions.samples import Sample
from amc_agents.errors import ConfigurationError
from amc_agents.messages import turn_of
from amc_agents.runtime.inner_calls import ask, quietly
from amc_agents.runtime.metering import usage_of
from amc_agents.usage import Usage

_log = logging.getLogger(__name__)


class ChatActor:
    """Samples turns of a chat model at one conversation (`amc_agents.lac.decision.Actor`).

    Args:
        model: a chat model, or one with arguments bound to it (`model.bind_tools(...)`).
        messages: the conversation so far.
        callbacks: who is told of the requests.
        threads: as in `amc_agents.runtime.inner_calls.ask`.
        log_likelihoods: ask for each sample's log-likelihood too.
        run_name: what tracers call a sample.
        **call: further arguments of the requests, such as `tools` and `stop`.
    """

    def __init__(
        self,
        model: Any,
        messages: Sequence[BaseMessage],
        *,
        callbacks: Callbacks = None,
        threads: Executor | None = None,
        log_likelihoods: bool = False,
        run_name: str = "candidate",
        **call: Any,
    ) -> None:
        chat, bound = unbound(model)
        self._call = {**bound, **call}
        self._takes_n = takes_n(chat, self._call)
        self._model = quietly(_kept_to_completions(chat) if self._takes_n else chat)
        self._messages, self._callbacks, self._threads = list(messages), callbacks, threads
        self._log_likelihoods = log_likelihoods and "logprobs" in type(chat).model_fields
        self._run_name = run_name
        self.usage = Usage()
        """What its requests used."""
        self.notes: list[str] = []
        """What a reader of the decision has to know."""

    async def sample(self, k: int) -> list[Sample]:
        """`k` independent turns, in one round trip."""
        asked = {"logprobs": True} if self._log_likelihoods else {}
        together = k > 1 and self._takes_n
        messages = await self._ask(self._model, f"{self._run_name}s", **asked, n=k) if together else []
        # Some servers take `n` and give a single answer all the same.
        missing = k - len(messages)
        for more in await side_by_side(*(self._ask(self._model, self._run_name, **asked) for _ in range(missing))):
            messages += more
        self._notice_copies(messages, together=together and not missing)
        return [self._sample(message) for message in messages[:k]]

    async def greedy(self) -> Sample:
        """The turn at temperature 0.

        Raises:
            ConfigurationError: the model has no temperature that could be set.
        """
        require_temperature(self._model)
        model = self._model.model_copy(update={"temperature": 0.0})
        bound = {"temperature": 0.0} if "temperature" in self._call else {}
        return self._sample((await self._ask(model, f"greedy {self._run_name}", **bound))[0])

    async def _ask(self, model: BaseChatModel, run_name: str, **more: Any) -> list[AIMessage]:
        """One request; all its answers."""
        call = {**self._call, **more, "run_name": run_name}
        answer = await ask(model, self._messages, threads=self._threads, callbacks=self._callbacks, **call)
        self.usage += usage_of(answer)
        messages = [one.message for one in answer.generations[0] if isinstance(one, ChatGeneration)]
        return [message for message in messages if isinstance(message, AIMessage)]

    def _sample(self, message: AIMessage) -> Sample:
        thought, action = turn_of(message)
        if not action and message.invalid_tool_calls:
            # The agent's mistake is an action too: the world will answer it.
            calls = [{"name": call["name"], "args": call["args"]} for call in message.invalid_tool_calls]
            action = json.dumps(calls, sort_keys=True, ensure_ascii=False)
        text = action if message.tool_calls else message.text
        return Sample(thought, action, message, self._log_likelihood(message), text)

    def _log_likelihood(self, message: AIMessage) -> float | None:
        """Of the whole text at the sampling temperature, or None where the answer does not say it."""
        if not self._log_likelihoods or any(self.setting(name, 1.0) != 1.0 for name in ("temperature", "top_p")):
            return None
        entries = (message.response_metadata.get("logprobs") or {}).get("content")
        if not entries:
            return None
        written = "".join(entry["token"] for entry in entries)
        if written == message.text and message.response_metadata.get("finish_reason") != "length":
            return None  # The end token is not among them, and without it a text is no likelier than its own beginning.
        if any(entry["logprob"] < LEAST_LOGPROB for entry in entries):
            return None  # OpenAI's mark of a token outside the likeliest, whose log-probability it does not say.
        return float(sum(entry["logprob"] for entry in entries))

    def setting(self, name: str, default: Any = None) -> Any:
        """A setting of its requests: the call's, else the model's."""
        found = self._call.get(name, getattr(self._model, name, None))
        return default if found is None else found

    def _notice_copies(self, messages: Sequence[AIMessage], *, together: bool) -> None:
        turns = {(message.text, json.dumps(message.tool_calls, default=str)) for message in map(_nameless, messages)}
        if len(messages) < 2 or len(turns) > 1:
            return
        causes = ["temperature 0"] if self.setting("temperature") == 0 else []
        if not together:
            seed = self.setting("seed")
            causes += [f"a fixed seed ({seed})"] if seed is not None else []
            causes += ["a cache"] if _cached(self._model) else []
        if causes:
            note = f"all {len(messages)} samples are the same, and the model has {' and '.join(causes)}"
            self.notes.append(note)
            _log.warning("%s: nothing is left to decide", note)


def unbound(model: Any) -> tuple[BaseChatModel, dict[str, Any]]:
    """A chat model, and the arguments that are bound to it.

    Raises:
        ConfigurationError: it is neither a chat model nor one with bound arguments.
    """
    bound: dict[str, Any] = {}
    found = model
    while isinstance(found, RunnableBinding):
        if set(found.config or {}) - {"configurable"} or found.config_factories:
            raise ConfigurationError(
                "expected a chat model with bound arguments, and this one has a config of its own "
                f"({', '.join(sorted(found.config)) or 'listeners'}), which its samples would not have: leave "
                "with_config and with_listeners to the model that comes back"
            )
        bound = {**found.kwargs, **bound}
        found = found.bound
    if not isinstance(found, BaseChatModel):
        raise ConfigurationError(
            f"expected a chat model, or one with arguments bound to it, got {type(found).__name__}: what is built on a "
            "chat model (with_retry, with_fallbacks, configurable fields) goes around the model that comes back"
        )
    return found, bound


def takes_n(model: BaseChatModel, call: Mapping[str, Any]) -> bool:
    """Whether one request can give several answers: a model with a setting `n` that does not talk to the Responses API.

    A model that leaves the API open (`use_responses_api=None`) is asked by chat completions, unless a setting or a tool
    of this call exists in the other API alone.
    """
    if "n" not in type(model).model_fields:
        return False
    chosen = getattr(model, "use_responses_api", False)
    if chosen is None:
        settings = (getattr(model, name, None) for name in _RESPONSES_ONLY)
        foreign_tools = any(isinstance(tool, dict) and "function" not in tool for tool in call.get("tools") or ())
        version = getattr(model, "output_version", None)
        return not (
            any(settings) or version == "responses/v1" or foreign_tools or not call.keys().isdisjoint(_RESPONSES_ONLY)
        )
    return not chosen


def require_temperature(model: BaseChatModel) -> None:
    """Refuse a model that cannot be made greedy.

    Raises:
        ConfigurationError: it has no setting `temperature`.
    """
    if "temperature" not in type(model).model_fields:
        raise ConfigurationError(
            f"greedy=True asks the model at temperature 0, and {type(model).__name__} has no setting `temperature`"
        )


def _kept_to_completions(model: BaseChatModel) -> BaseChatModel:
    """A copy that cannot fall to an API without `n`."""
    if "use_responses_api" not in type(model).model_fields:
        return model
    return model.model_copy(update={"use_responses_api": False})


def _cached(model: BaseChatModel) -> bool:
    return model.cache is not False and (model.cache is not None or get_llm_cache() is not None)


def _nameless(message: AIMessage) -> AIMessage:
    """Without the ids of its tool calls, which differ between equal answers."""
    return message.model_copy(update={"tool_calls": [{**call, "id": None} for call in message.tool_calls]})


_RESPONSES_ONLY = ("reasoning", "include", "truncation", "context_management", "use_previous_response_id", "text")
"""Settings of OpenAI's Responses API that chat completions do not know."""
