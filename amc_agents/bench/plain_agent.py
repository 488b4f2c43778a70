"""The text agent as a plain loop, without LangGraph's supersteps and LangChain's runs.

With a policy as small as the embedded one, these take more than half of a comparison's time, which adds up to hours in
a study of hundreds of thousands of trajectories. The dialogue, the random draws and the results equal those of the
graph (tests/bench/test_plain_agent.py). Models that take seconds to answer gain nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast
from uuid import uuid4

from langchain_core.callbacks import AsyncCallbackManager
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.configurable import DynamicRunnable
from langgraph.checkpoint.base import CheckpointMetadata, empty_checkpoint
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Overwrite

from amc_agents.concurrency.background import in_new_thread, on_background_loop
from amc_agents.messages import turn_of
from amc_agents.population.saver import ForkSaver
from amc_agents.runtime.metering import WRAPPER_TYPES, PolicyMeter, policy_meter
from amc_agents.runtime.text_agent import text_agent
from amc_agents.runtime.world import current_environment

_NEWEST = "newest"
"""Id of a thread's only checkpoint: a particle only continues from its newest state."""


class PlainTextAgent(CompiledStateGraph[Any, Any, Any, Any]):
    """Looks like `text_agent` to `amc()`, and runs as a loop. It works only as a particle's agent."""

    model: BaseChatModel | DynamicRunnable[Any, Any]
    """The second one is a model that a particle's configuration chooses."""

    def copy(self, update: Mapping[str, Any] | None = None) -> PlainTextAgent:
        """Copy the agent with some attributes changed."""
        return _plain({**self.__dict__, **(update or {})}, self.model)

    async def astream(  # type: ignore[override]
        self, input: Mapping[str, Any] | None, config: RunnableConfig, stream_mode: Sequence[str] = (), **_: Any
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Stream the updates and values that `text_agent` streams after each answer of the world."""
        saver, thread_id = self.checkpointer, config["configurable"]["thread_id"]
        callbacks = cast(AsyncCallbackManager | None, config.get("callbacks"))
        model = self.model.prepare(config)[0] if isinstance(self.model, DynamicRunnable) else self.model
        assert isinstance(saver, ForkSaver), "only amc() can run this agent"
        messages, done = _input_messages(input), False
        if input is None:
            stored = saver.get_tuple(config)
            assert stored is not None
            messages, done = (stored.checkpoint["channel_values"][key] for key in ("messages", "done"))
        try:
            while not done:
                if "tasks" in stream_mode:
                    yield "tasks", {}
                message = await _call_model(cast(BaseChatModel, model), messages, callbacks)
                answer = await current_environment().step(turn_of(message)[1])
                done = answer.done
                messages = [*messages, message, HumanMessage(answer.observation, id=str(uuid4()))]
                state = {"messages": messages, "done": done}
                yield "updates", {"tools": state}
                yield "values", state
        finally:
            checkpoint = empty_checkpoint()
            checkpoint["id"], checkpoint["channel_values"] = _NEWEST, {"messages": messages, "done": done}
            # Each superstep of the graph adds one message.
            metadata: CheckpointMetadata = {"source": "loop", "step": len(messages) - 1}
            saver.put({"configurable": {"thread_id": thread_id}}, checkpoint, metadata, {})


def plain_text_agent(model: BaseChatModel) -> PlainTextAgent:
    """Return a faster replacement of `text_agent(model)` for use in `amc()`."""
    return _plain(text_agent(model).__dict__, model)


def _plain(attributes: Mapping[str, Any], model: Any) -> PlainTextAgent:
    agent = PlainTextAgent(**{key: value for key, value in attributes.items() if key != "model"})
    agent.model = model
    return agent


async def _call_model(
    model: BaseChatModel, messages: list[BaseMessage], callbacks: AsyncCallbackManager | None
) -> AIMessage:
    """Return the model's next message. Without callbacks other than the meter, the meter is called directly."""
    if callbacks is not None and any(not isinstance(handler, PolicyMeter) for handler in callbacks.handlers):
        return await model.ainvoke(messages, {"callbacks": callbacks})
    # On the library's own loop, connections of an async client would not fit into a later async call.
    apart = on_background_loop() and not getattr(model, "fits_any_loop", False)
    result = await (in_new_thread(model._generate, messages) if apart else model._agenerate(messages))
    run_id, response = uuid4(), LLMResult(generations=[[*result.generations]], llm_output=result.llm_output)
    # A model that decides among the answers of another one meters the other's requests itself.
    if (meter := policy_meter()) is not None and model._llm_type not in WRAPPER_TYPES:
        meter.on_llm_end(response, run_id=run_id)
    message = result.generations[0].message
    assert isinstance(message, AIMessage)
    message.id = message.id or str(run_id)
    return message


def _input_messages(input: Mapping[str, Any] | None) -> list[BaseMessage]:
    messages = (input or {}).get("messages", [])
    return list(messages.value if isinstance(messages, Overwrite) else messages)
