"""The text agent as a plain loop: the dialogue of `text_agent` without LangGraph's supersteps and LangChain's runs.

With a policy as small as the embedded one, more than half of a comparison's time is theirs; over the hundreds of
thousands of trajectories of a study that is hours. The dialogue, the luck and so the results are those of the graph
(tests/bench/test_plain_agent.py); models that take seconds to answer gain nothing.
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
from langgraph.checkpoint.base import CheckpointMetadata, empty_checkpoint
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Overwrite

from amc_agents.messages import turn_of
from amc_agents.population.saver import ForkSaver
from amc_agents.runtime.metering import PolicyMeter, policy_meter
from amc_agents.runtime.text_agent import text_agent
from amc_agents.runtime.world import current_environment

_NEWEST = "newest"
"""The only checkpoint of a thread: a particle goes on from where it is, never from before."""


class PlainTextAgent(CompiledStateGraph[Any, Any, Any, Any]):
    """`text_agent` to `amc()`, and a loop when it is driven as a particle. It does nothing else."""

    model: BaseChatModel

    def copy(self, update: Mapping[str, Any] | None = None) -> PlainTextAgent:
        """The same, with some attributes changed."""
        return _plain({**self.__dict__, **(update or {})}, self.model)

    async def astream(  # type: ignore[override]
        self, input: Mapping[str, Any] | None, config: RunnableConfig, stream_mode: Sequence[str] = (), **_: Any
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """What `text_agent` streams of its updates and values, after each answer of the world."""
        saver, thread_id = self.checkpointer, config["configurable"]["thread_id"]
        assert isinstance(saver, ForkSaver), "only amc() drives this agent"
        messages, done = _given(input), False
        if input is None:
            found = saver.get_tuple(config)
            assert found is not None
            messages, done = (found.checkpoint["channel_values"][key] for key in ("messages", "done"))
        try:
            while not done:
                if "tasks" in stream_mode:
                    yield "tasks", {}
                said = await self._asked(messages, cast(AsyncCallbackManager | None, config.get("callbacks")))
                answer = await current_environment().step(turn_of(said)[1])
                done = answer.done
                messages = [*messages, said, HumanMessage(answer.observation, id=str(uuid4()))]
                state = {"messages": messages, "done": done}
                yield "updates", {"tools": state}
                yield "values", state
        finally:
            checkpoint = empty_checkpoint()
            checkpoint["id"], checkpoint["channel_values"] = _NEWEST, {"messages": messages, "done": done}
            # Each superstep of the graph adds one message.
            metadata: CheckpointMetadata = {"source": "loop", "step": len(messages) - 1}
            saver.put({"configurable": {"thread_id": thread_id}}, checkpoint, metadata, {})

    async def _asked(self, messages: list[BaseMessage], callbacks: AsyncCallbackManager | None) -> AIMessage:
        """The model's next message. Where nobody but the meter listens, the meter is told, and no run is made of it."""
        if callbacks is not None and any(not isinstance(handler, PolicyMeter) for handler in callbacks.handlers):
            return await self.model.ainvoke(messages, {"callbacks": callbacks})
        found = await self.model._agenerate(messages)
        run_id, response = uuid4(), LLMResult(generations=[[*found.generations]], llm_output=found.llm_output)
        if (meter := policy_meter()) is not None:
            meter.on_llm_end(response, run_id=run_id)
        said = found.generations[0].message
        assert isinstance(said, AIMessage)
        said.id = said.id or str(run_id)
        return said


def plain_text_agent(model: BaseChatModel) -> PlainTextAgent:
    """A stand-in for `text_agent(model)` under `amc()`, for speed."""
    return _plain(text_agent(model).__dict__, model)


def _plain(attributes: Mapping[str, Any], model: BaseChatModel) -> PlainTextAgent:
    agent = PlainTextAgent(**{key: value for key, value in attributes.items() if key != "model"})
    agent.model = model
    return agent


def _given(input: Mapping[str, Any] | None) -> list[BaseMessage]:
    messages = (input or {}).get("messages", [])
    return list(messages.value if isinstance(messages, Overwrite) else messages)
