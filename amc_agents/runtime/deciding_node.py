"""A graph node around a deciding chat model."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda

from amc_agents.runtime.contract import as_mapping
from amc_agents.runtime.deciding_model import DecidingModel, Record
from amc_agents.runtime.effects import effect


def deciding_node(model: DecidingModel, decisions: str | None, name: str) -> RunnableLambda[Any, Any]:
    """Build a node for a StateGraph with `messages`, sync and async: it adds the message that the model chooses.

    Args:
        model: decides. A leading system message of the state belongs to the task, as in everything that `amc` reads.
        decisions: channel of the state that receives `[record]` of each decision; None: no channel.
        name: name of the node.
    """
    wrapped = model.model_copy(update={"system_is_task": True})

    def update(message: AIMessage, records: list[Record]) -> dict[str, Any]:
        return {"messages": [message]} | ({} if decisions is None else {decisions: records})

    def call(state: Any) -> dict[str, Any]:
        records: list[Record] = []
        deciding = wrapped.model_copy(update={"sink": records.append})
        return update(deciding.invoke(as_mapping(state)["messages"]), records)

    async def acall(state: Any) -> dict[str, Any]:
        records: list[Record] = []
        deciding = wrapped.model_copy(update={"sink": records.append})
        return update(await deciding.ainvoke(as_mapping(state)["messages"]), records)

    return effect("read")(RunnableLambda(call, acall, name=name))
