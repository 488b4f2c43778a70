"""How a chat model of ours makes the calls that its one answer needs: traced below it, counted, never streamed.

And what it finds out about the run around it: who else is listening, which critic this call named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from functools import partial
from typing import Any

from langchain_core.callbacks import AsyncCallbackManager, Callbacks
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.outputs import LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, var_child_runnable_config
from langgraph.config import get_stream_writer
from langgraph.constants import TAG_NOSTREAM
from langgraph.runtime import get_runtime

from amc_agents.concurrency.gather import side_by_side
from amc_agents.decisions.asking import Answers
from amc_agents.models.seeding import particle_rng, use_rng
from amc_agents.quoting import keep_secrets_of
from amc_agents.runtime.metering import PolicyMeter, model_of, policy_meter, usage_of
from amc_agents.usage import metering, record


def callbacks_below(run_manager: Any) -> AsyncCallbackManager:
    """Callbacks for what runs below a model's own run: all that were handed down to it, except those that stream.

    Args:
        run_manager: of the model's run, sync or async; None where nobody listens.
    """
    if run_manager is None:
        return AsyncCallbackManager(handlers=[])
    manager = AsyncCallbackManager(handlers=[], parent_run_id=run_manager.run_id)
    manager.set_handlers([one for one in run_manager.inheritable_handlers if not hasattr(one, "tap_output_aiter")])
    manager.add_tags([*run_manager.inheritable_tags, TAG_NOSTREAM])
    # What names this model in a trace would else name those below it.
    metadata = {key: value for key, value in run_manager.inheritable_metadata.items() if not key.startswith("ls_")}
    manager.add_metadata(metadata)
    return manager


@contextmanager
def running_below(callbacks: AsyncCallbackManager) -> Iterator[None]:
    """Whatever is called inside, such as a critic's model, is told to `callbacks`, and to their meter if they have one.

    A critic that an agent under `amc` asks is then counted by that run.
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
    """The custom stream of the graph around, or one that goes nowhere."""
    if var_child_runnable_config.get() and get_runtime() is not None:
        return get_stream_writer()
    return lambda event: None


def named_critic(config: RunnableConfig | None = None) -> tuple[Any, str]:
    """The critic that a call names and where, the context before `configurable`; None where it names none."""
    runtime = get_runtime() if var_child_runnable_config.get() else None
    context = None if runtime is None else runtime.context
    if isinstance(context, Mapping) and context.get("critic") is not None:
        return context["critic"], "context"
    return ensure_config(config).get("configurable", {}).get("critic"), "configurable"


def quietly(model: BaseChatModel) -> BaseChatModel:
    """A copy that never streams."""
    # Some clients read `streaming` themselves.
    streaming = {"streaming": False} if "streaming" in type(model).model_fields else {}
    return model.model_copy(update={"disable_streaming": True, **streaming})


async def ask(
    model: BaseChatModel,
    messages: Sequence[BaseMessage],
    *,
    threads: Executor | None,
    callbacks: Callbacks,
    tags: Sequence[str] = (),
    **call: Any,
) -> LLMResult:
    """One request to a chat model, never streamed.

    Args:
        model: made by `quietly`.
        messages: the conversation.
        threads: where the model's sync client is to be used; None for its async one. A connection of an async client
            belongs to one event loop, so what was called in sync must not leave any on the background loop: the same
            client would find it again when it is next called in async.
        callbacks: who is told.
        tags: besides that which keeps it out of streams.
        **call: further arguments of the request.
    """
    keep_secrets_of(model)
    rng = particle_rng()
    # Each request draws from a stream of its own, whichever comes first.
    with nullcontext() if rng is None else use_rng(rng.spawn(1)[0]):
        told = {"callbacks": callbacks, "tags": [TAG_NOSTREAM, *tags], **call}
        if threads is None:
            return await model.agenerate([list(messages)], **told)
        work = partial(copy_context().run, model.generate, [list(messages)], **told)
        return await asyncio.get_running_loop().run_in_executor(threads, work)


def world_model_answers(model: BaseChatModel, threads: Executor | None, *, run_name: str = "world model") -> Answers:
    """A chat model that imagines what may come: `role_answers`, counted as "world model"."""
    return role_answers(model, "world model", threads, run_name=run_name)


def role_answers(
    model: BaseChatModel, role: str, threads: Executor | None = None, *, run_name: str | None = None
) -> Answers:
    """A chat model in one role of a method: prompts in, texts out, all at once, counted under the role.

    Args:
        model: is asked; its temperature is the role's.
        role: for usage.
        threads: as in `ask`.
        run_name: in traces; None: the role.
    """
    quiet = quietly(model)

    async def answer(prompt: str) -> str:
        told = await ask(
            quiet,
            [HumanMessage(prompt)],
            threads=threads,
            callbacks=ensure_config().get("callbacks"),
            tags=["role"],
            run_name=run_name or role,
        )
        record(role, usage_of(told), model_of(told))
        return told.generations[0][0].text

    async def answers(prompts: Sequence[str]) -> list[str]:
        return await side_by_side(*map(answer, prompts))

    return answers
