"""PNLC's thinker for any chat model: its turn, its answer to a critique, and the turn that follows from a thought.

The requests belong to an unfinished decision: they are traced, but not streamed to the user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.callbacks import Callbacks
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from amc_agents.decisions.samples import Sample
from amc_agents.messages import split_turn, turn_of
from amc_agents.pnlc.decision import PnlcPrompts
from amc_agents.runtime.inner_calls import ChatActor
from amc_agents.usage import Usage


class ChatThinker:
    """A chat model at the end of a conversation (`amc_agents.pnlc.types.Thinker`).

    Args:
        model: the policy.
        messages: the conversation.
        prompts: the prompt templates.
        system_is_task: a leading system message is part of the task, which the prompts contain already.
        callbacks: callbacks of the requests.
        **call: further arguments of the requests for turns, such as `tools` and `stop`.
    """

    def __init__(
        self,
        model: BaseChatModel,
        messages: Sequence[BaseMessage],
        prompts: PnlcPrompts,
        *,
        system_is_task: bool = False,
        callbacks: Callbacks = None,
        **call: Any,
    ) -> None:
        self._model, self._messages, self._prompts, self._call = model, list(messages), prompts, call
        self._callbacks = callbacks
        has_prompt = len(self._messages) > 1 and isinstance(self._messages[0], SystemMessage) and not system_is_task
        self._prompt = self._messages[: int(has_prompt)]
        self.usage = Usage()
        """Usage of its requests."""
        self.notes: list[str] = []
        """Remarks for the reader of the decision."""

    async def sample(self, k: int) -> list[Sample]:
        """Return `k` independent turns in one round trip."""
        return await self._sample(k, self._messages, "thought", self._call)

    async def act(self, thought: str) -> Sample:
        """Return the turn that follows from a thought; its message contains the thought."""
        messages = _with_text(self._messages, self._prompts.to_act(thought))
        turns = await self._sample(1, messages, "action", self._call)
        return replace(turns[0], payload=carrying(turns[0].payload, thought)) if turns else Sample(thought, "")

    async def answer(self, prompt: str) -> str:
        """Answer a question about the decision as text, without tools."""
        call = {name: value for name, value in self._call.items() if name not in _OF_TURNS}
        turns = await self._sample(1, [*self._prompt, HumanMessage(prompt)], "reflection", call)
        return turns[0].payload.text if turns else ""

    async def _sample(
        self, k: int, messages: Sequence[BaseMessage], run_name: str, call: Mapping[str, Any]
    ) -> list[Sample]:
        actor = ChatActor(self._model, messages, run_name=run_name, callbacks=self._callbacks, **call)
        samples = await actor.sample(k)
        self.usage += actor.usage
        self.notes += actor.notes
        return samples


def carrying(message: AIMessage, thought: str) -> AIMessage:
    """Add the thought to a message without a thought, where the history and critics read it."""
    if turn_of(message)[0] or not thought:
        return message
    if message.tool_calls:
        if isinstance(message.content, str):
            return message.model_copy(update={"content": thought})
        return message.model_copy(update={"content": [{"type": "text", "text": thought}, *message.content]})
    # A text without `Action:` may be the agent's answer to its user, who should not see the thought.
    if isinstance(message.content, str) and "Action:" in message.content:
        text = f"Thought: {thought}\nAction: {split_turn(message.text)[1]}"
        return message.model_copy(update={"content": text})
    return message


def described(tools: Sequence[Any]) -> str:
    """Describe tools as text, for prompts without bound tools; empty if there are no tools."""
    lines = []
    for tool in tools:
        facts = tool.get("function", tool) if isinstance(tool, Mapping) else {}
        if facts.get("name"):
            lines.append(f"- {facts['name']}: {facts.get('description', '')}".rstrip(": "))
    return "\n".join(("The agent's tools:", *lines)) if lines else ""


def _with_text(messages: Sequence[BaseMessage], text: str) -> list[BaseMessage]:
    """Append a user message, or extend the last message if it is the user's.

    Many chat templates refuse two user messages in a row.
    """
    last = messages[-1] if messages else None
    if not isinstance(last, HumanMessage):
        return [*messages, HumanMessage(text)]
    if isinstance(last.content, str):
        content: Any = f"{last.content}\n\n{text}"
    else:
        content = [*last.content, {"type": "text", "text": text}]
    return [*messages[:-1], last.model_copy(update={"content": content})]


_OF_TURNS = {
    "tools", "tool_choice", "functions", "function_call", "parallel_tool_calls", "strict", "response_format",
    "ls_structured_output_format", "stop", "n", "logprobs", "top_logprobs",
}  # fmt: skip
"""Arguments that only apply to the agent's turns."""
