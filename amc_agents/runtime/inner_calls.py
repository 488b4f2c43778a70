"""Requests inside a deciding chat model: traced below it, counted, never streamed; K turns at once where models can.

Also reads the surrounding run: its stream, and the critic that the call names.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
from langchain_core.callbacks import AsyncCallbackManager, Callbacks
from langchain_core.globals import get_llm_cache
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableBinding, RunnableConfig
from langchain_core.runnables.config import ensure_config, var_child_runnable_config
from langgraph.config import get_stream_writer
from langgraph.constants import TAG_NOSTREAM
from langgraph.runtime import get_runtime

from amc_agents.concurrency.background import close_connections_at_end
from amc_agents.concurrency.gather import politely, side_by_side
from amc_agents.critics.asking import name_of
from amc_agents.critics.server.served import LEAST_LOGPROB
from amc_agents.decisions import Answers, Sample
from amc_agents.errors import BudgetExhausted, ConfigurationError, UnboundedRequest
from amc_agents.logs import log, room_logger
from amc_agents.messages import turn_of
from amc_agents.models.seeding import particle_rng, use_rng
from amc_agents.quoting import keep_secrets_of
from amc_agents.runtime.metering import PolicyMeter, model_of, policy_meter, usage_of
from amc_agents.usage import Usage, metering, record

_log = room_logger(__name__)


def callbacks_below(run_manager: Any) -> AsyncCallbackManager:
    """Return callbacks for requests below a model's run: those that it inherited, except handlers that stream.

    Args:
        run_manager: run manager of the model, sync or async; None: no callbacks.
    """
    if run_manager is None:
        return AsyncCallbackManager(handlers=[])
    manager = AsyncCallbackManager(handlers=[], parent_run_id=run_manager.run_id)
    manager.set_handlers(
        [handler for handler in run_manager.inheritable_handlers if not hasattr(handler, "tap_output_aiter")]
    )
    manager.add_tags([*run_manager.inheritable_tags, TAG_NOSTREAM])
    # `ls_` keys name this model in a trace, and must not name the models below it.
    metadata = {key: value for key, value in run_manager.inheritable_metadata.items() if not key.startswith("ls_")}
    manager.add_metadata(metadata)
    return manager


@contextmanager
def running_below(callbacks: AsyncCallbackManager) -> Iterator[None]:
    """Report calls inside the block, such as those of a critic's model, to `callbacks` and to their meter.

    The surrounding run of `amc` therefore counts a critic that its agent calls.
    """
    inside: RunnableConfig = {**ensure_config(), "callbacks": callbacks, "tags": [TAG_NOSTREAM]}
    token = var_child_runnable_config.set(inside)
    meters = [handler for handler in callbacks.handlers if isinstance(handler, PolicyMeter)]
    meter = meters[0] if meters else policy_meter()
    try:
        with nullcontext() if meter is None else metering(meter.meter):
            yield
    finally:
        var_child_runnable_config.reset(token)


def stream_writer() -> Callable[[dict[str, Any]], None]:
    """Return the writer of the surrounding graph's custom stream; without a graph, a writer that discards."""
    if var_child_runnable_config.get() and get_runtime() is not None:
        return get_stream_writer()
    return lambda event: None


def named_critic(config: RunnableConfig | None = None) -> tuple[Any, str]:
    """Return the critic that a call names and the place, the context before `configurable`; None if not named."""
    runtime = get_runtime() if var_child_runnable_config.get() else None
    context = None if runtime is None else runtime.context
    if isinstance(context, Mapping) and context.get("critic") is not None:
        return context["critic"], "context"
    return ensure_config(config).get("configurable", {}).get("critic"), "configurable"


def quietly(model: BaseChatModel) -> BaseChatModel:
    """Return a copy of the model that never streams."""
    # Some clients read `streaming` themselves.
    streaming = {"streaming": False} if "streaming" in type(model).model_fields else {}
    return model.model_copy(update={"disable_streaming": True, **streaming})


async def ask(
    model: BaseChatModel,
    messages: Sequence[BaseMessage],
    *,
    callbacks: Callbacks,
    tags: Sequence[str] = (),
    sending: Callable[[], None] = lambda: None,
    **call: Any,
) -> LLMResult:
    """Send a request to a chat model, without streaming. After a rate limit it is sent again.

    Args:
        model: a model from `quietly`.
        messages: the conversation.
        callbacks: callbacks of the request.
        tags: further tags.
        sending: called just before each attempt.
        **call: further arguments of the request.
    """
    keep_secrets_of(model)
    call = {"callbacks": callbacks, **call, "tags": [TAG_NOSTREAM, *tags]}
    return await politely(partial(_ask_once, model, messages, particle_rng(), sending, call))


async def _ask_once(
    model: BaseChatModel,
    messages: Sequence[BaseMessage],
    rng: np.random.Generator | None,
    sending: Callable[[], None],
    call: Mapping[str, Any],
) -> LLMResult:
    # Each request has its own random stream, so the order of requests does not matter.
    with nullcontext() if rng is None else use_rng(rng.spawn(1)[0]):
        await close_connections_at_end()
        sending()
        return await model.agenerate([list(messages)], **call)


def role_answers(model: BaseChatModel, role: str, *, run_name: str | None = None) -> Answers:
    """Wrap a chat model in a role of a method: concurrent prompts in, texts out, counted under the role.

    Args:
        model: the chat model, with the temperature of the role.
        role: name of the role for usage.
        run_name: name in traces; None: the role.
    """
    quiet = quietly(model)

    async def answer(prompt: str) -> str:
        sent = threading.Event()
        try:
            result = await ask(
                quiet,
                [HumanMessage(prompt)],
                callbacks=ensure_config().get("callbacks"),
                tags=["role"],
                sending=sent.set,
                run_name=run_name or role,
            )
        except (BudgetExhausted, UnboundedRequest):
            raise
        except BaseException:
            # The server may have received the request, and then it is paid for.
            if sent.is_set():
                record(role, Usage(calls=1, missing=1), name_of(quiet))
            raise
        record(role, usage_of(result), model_of(result))
        return result.generations[0][0].text

    async def answers(prompts: Sequence[str]) -> list[str]:
        return await side_by_side(*map(answer, prompts))

    return answers


class ChatActor:
    """Samples turns of a chat model at the end of a conversation (`amc_agents.decisions.Actor`).

    Args:
        model: a chat model, or a chat model with bound arguments (`model.bind_tools(...)`).
        messages: the conversation.
        callbacks: callbacks of the requests.
        log_likelihoods: request each sample's log-likelihood too.
        run_name: name of a sample in traces.
        **call: further arguments of the requests, such as `tools` and `stop`.
    """

    def __init__(
        self,
        model: Any,
        messages: Sequence[BaseMessage],
        *,
        callbacks: Callbacks = None,
        log_likelihoods: bool = False,
        run_name: str = "candidate",
        **call: Any,
    ) -> None:
        chat, bound = unbound(model)
        self._call = {**bound, **call}
        self._takes_n = takes_n(chat, self._call)
        self._model = quietly(_kept_to_completions(chat) if self._takes_n else chat)
        self._messages, self._callbacks = list(messages), callbacks
        self._log_likelihoods = log_likelihoods and "logprobs" in type(chat).model_fields
        self._run_name = run_name
        self.usage = Usage()
        """Usage of its requests."""
        self.notes: list[str] = []
        """Remarks for the reader of the decision."""

    async def sample(self, k: int) -> list[Sample]:
        """Return `k` independent turns in one round trip."""
        options = {"logprobs": True} if self._log_likelihoods else {}
        together = k > 1 and self._takes_n
        messages = await self._ask(self._model, f"{self._run_name}s", **options, n=k) if together else []
        # Some servers accept `n` and return a single answer.
        missing = k - len(messages)
        for more in await side_by_side(*(self._ask(self._model, self._run_name, **options) for _ in range(missing))):
            messages += more
        self._notice_copies(messages, together=together and not missing)
        return [self._sample(message) for message in messages[:k]]

    async def greedy(self) -> Sample:
        """Return the turn at temperature 0.

        Raises:
            ConfigurationError: the model has no setting `temperature`.
        """
        require_temperature(self._model)
        model = self._model.model_copy(update={"temperature": 0.0})
        bound = {"temperature": 0.0} if "temperature" in self._call else {}
        return self._sample((await self._ask(model, f"greedy {self._run_name}", **bound))[0])

    async def _ask(self, model: BaseChatModel, run_name: str, **more: Any) -> list[AIMessage]:
        """Send a request and return all its answers."""
        call = {**self._call, **more, "run_name": run_name}
        answer = await ask(model, self._messages, callbacks=self._callbacks, **call)
        self.usage += usage_of(answer)
        messages = [choice.message for choice in answer.generations[0] if isinstance(choice, ChatGeneration)]
        return [message for message in messages if isinstance(message, AIMessage)]

    def _sample(self, message: AIMessage) -> Sample:
        thought, action = turn_of(message)
        if not action and message.invalid_tool_calls:
            # The agent's mistake is an action too: the world answers it.
            calls = [{"name": call["name"], "args": call["args"]} for call in message.invalid_tool_calls]
            action = json.dumps(calls, sort_keys=True, ensure_ascii=False)
        text = action if message.tool_calls else message.text
        return Sample(thought, action, message, self._log_likelihood(message), text)

    def _log_likelihood(self, message: AIMessage) -> float | None:
        """Return the log-likelihood of the whole text at the sampling temperature; None: not reported."""
        if not self._log_likelihoods or any(self.setting(name, 1.0) != 1.0 for name in ("temperature", "top_p")):
            return None
        entries = (message.response_metadata.get("logprobs") or {}).get("content")
        if not entries:
            return None
        written = "".join(entry["token"] for entry in entries)
        if written == message.text and message.response_metadata.get("finish_reason") != "length":
            return None  # The end token is missing, and without it the value is that of a prefix.
        if any(entry["logprob"] < LEAST_LOGPROB for entry in entries):
            return (
                None  # OpenAI's mark for a token outside the most likely tokens, whose log-probability is not reported.
            )
        return float(sum(entry["logprob"] for entry in entries))

    def setting(self, name: str, default: Any = None) -> Any:
        """Return a setting of the requests: the call's, else the model's, else the default."""
        value = self._call.get(name, getattr(self._model, name, None))
        return default if value is None else value

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
            log(_log, logging.WARNING, "decision.single", "%(note)s: the decision has a single candidate", note=note)


def unbound(model: Any) -> tuple[BaseChatModel, dict[str, Any]]:
    """Split a chat model with bound arguments into the chat model and the arguments.

    Raises:
        ConfigurationError: it is neither a chat model nor a chat model with bound arguments.
    """
    arguments: dict[str, Any] = {}
    inner = model
    while isinstance(inner, RunnableBinding):
        if set(inner.config or {}) - {"configurable"} or inner.config_factories:
            raise ConfigurationError(
                "expected a chat model with bound arguments, got a model with a config "
                f"({', '.join(sorted(inner.config)) or 'listeners'}), which its samples would not have: apply "
                "with_config and with_listeners to the returned model"
            )
        arguments = {**inner.kwargs, **arguments}
        inner = inner.bound
    if not isinstance(inner, BaseChatModel):
        raise ConfigurationError(
            f"expected a chat model, or a chat model with bound arguments, got {type(inner).__name__}: apply wrappers "
            "(with_retry, with_fallbacks, configurable fields) to the returned model"
        )
    return inner, arguments


def takes_n(model: BaseChatModel, call: Mapping[str, Any]) -> bool:
    """True if a request can return several answers: the model has a setting `n` and does not use the Responses API.

    A model that leaves the API open (`use_responses_api=None`) is called by chat completions, unless a setting or a
    tool of this call exists only in the Responses API.
    """
    if "n" not in type(model).model_fields:
        return False
    uses_responses_api = getattr(model, "use_responses_api", False)
    if uses_responses_api is None:
        settings = (getattr(model, name, None) for name in _RESPONSES_ONLY)
        foreign_tools = any(isinstance(tool, dict) and "function" not in tool for tool in call.get("tools") or ())
        version = getattr(model, "output_version", None)
        return not (
            any(settings) or version == "responses/v1" or foreign_tools or not call.keys().isdisjoint(_RESPONSES_ONLY)
        )
    return not uses_responses_api


def require_temperature(model: BaseChatModel) -> None:
    """Check that a model has a setting `temperature`.

    Raises:
        ConfigurationError: the model has no such setting.
    """
    if "temperature" not in type(model).model_fields:
        raise ConfigurationError(
            f"greedy=True calls the model at temperature 0, and {type(model).__name__} has no setting `temperature`"
        )


def _kept_to_completions(model: BaseChatModel) -> BaseChatModel:
    """Return a copy that never switches to an API without `n`."""
    if "use_responses_api" not in type(model).model_fields:
        return model
    return model.model_copy(update={"use_responses_api": False})


def _cached(model: BaseChatModel) -> bool:
    return model.cache is not False and (model.cache is not None or get_llm_cache() is not None)


def _nameless(message: AIMessage) -> AIMessage:
    """Remove the ids of tool calls, which differ between equal answers."""
    return message.model_copy(update={"tool_calls": [{**call, "id": None} for call in message.tool_calls]})


_RESPONSES_ONLY = ("reasoning", "include", "truncation", "context_management", "use_previous_response_id", "text")
"""Settings that only OpenAI's Responses API has."""


def as_chunk(message: AIMessage) -> AIMessageChunk:
    """Convert a message to the first and last chunk of a stream, with its id."""
    calls: list[tuple[str | None, str | None, str | None]] = [
        *((call["name"], json.dumps(call["args"]), call["id"]) for call in message.tool_calls),
        *((call["name"], call["args"], call["id"]) for call in message.invalid_tool_calls),
    ]
    return AIMessageChunk(
        content=message.content,
        id=message.id,
        name=message.name,
        additional_kwargs=message.additional_kwargs,
        response_metadata=message.response_metadata,
        usage_metadata=message.usage_metadata,
        tool_call_chunks=[
            tool_call_chunk(name=name, args=args, id=call_id, index=index)
            for index, (name, args, call_id) in enumerate(calls)
        ],
        chunk_position="last",
    )
