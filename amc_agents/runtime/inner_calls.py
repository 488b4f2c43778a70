"""Requests inside a deciding chat model: traced below it, counted, never streamed.

Also reads the surrounding run: its stream, and the critic that the call names.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
from langchain_core.callbacks import AsyncCallbackManager, Callbacks
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.outputs import LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, var_child_runnable_config
from langgraph.config import get_stream_writer
from langgraph.constants import TAG_NOSTREAM
from langgraph.runtime import get_runtime

from amc_agents.concurrency.background import close_connections_at_end
from amc_agents.concurrency.gather import side_by_side
from amc_agents.concurrency.rate_gate import politely
from amc_agents.critics.asking import name_of
from amc_agents.decisions.asking import Answers
from amc_agents.errors import BudgetExhausted, UnboundedRequest
from amc_agents.models.seeding import particle_rng, use_rng
from amc_agents.quoting import keep_secrets_of
from amc_agents.runtime.metering import PolicyMeter, model_of, policy_meter, usage_of
from amc_agents.usage import Usage, metering, record


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
