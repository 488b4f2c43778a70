"""Scripted agents with each middleware that LangChain ships, and with the forms that users write themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NotRequired

from langchain.agents import AgentState
from langchain.agents.middleware import (
    AgentMiddleware,
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    FilesystemFileSearchMiddleware,
    HumanInTheLoopMiddleware,
    LLMToolEmulator,
    LLMToolSelectorMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    PIIMiddleware,
    ProviderToolSearchMiddleware,
    ShellToolMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
    ToolCallLimitMiddleware,
    ToolErrorMiddleware,
    ToolRetryMiddleware,
    after_agent,
    after_model,
    before_agent,
    before_model,
    dynamic_prompt,
    hook_config,
    wrap_model_call,
    wrap_tool_call,
)
from langchain.agents.middleware.types import PrivateStateAttr
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langgraph.types import Command
from pydantic import BaseModel

from amc_agents.testing.scripted import ScriptedChatModel
from tests.like_plain.agents import HELLO, LOOK, MORE, agent_with, call, failing_tool, looking, scripted
from tests.like_plain.play import Parts, Scenario, is_async


def following(last: dict[str, Any]) -> ScriptedChatModel:
    """A model that answers to the conversation's last message alone."""
    return ScriptedChatModel(respond=lambda messages: last.get(messages[-1].text, AIMessage("Done.")))


def calling(word: str) -> AIMessage:
    return AIMessage("", tool_calls=[call("look", word=word)])


TWICE = scripted(call("look", word="a"), call("look", word="b"), call("look", word="c"), "Done.")
ENDLESS = scripted(call("look", word="a"))
MAIL = scripted(call("look", word="ann@example.com"), "Write to bob@example.com.")


def using(
    *middleware: Callable[[Parts], Any], model: Any = LOOK, turns: Any = (HELLO, MORE), **options: Any
) -> Scenario:
    """Return the scenario of an agent with these middlewares."""
    tools = options.pop("tools", (looking,))
    scenario = {name: options.pop(name) for name in ("needs_saver", "only", "wrapped") if name in options}
    made = agent_with(*tools, model=model, middleware=lambda parts: [one(parts) for one in middleware], **options)
    return Scenario(made, list(turns), **scenario)


def fixed(middleware: Callable[[], Any]) -> Callable[[Parts], Any]:
    return lambda parts: middleware()


class Answer(BaseModel):
    """The answer."""

    word: str
    n: int


class Counting(AgentState[Any]):
    asked: NotRequired[Annotated[int, PrivateStateAttr]]
    shown: NotRequired[int]


class CountsTurns(AgentMiddleware[Any]):
    """Has every hook, and state that is private."""

    state_schema = Counting

    def before_agent(self, state: Any, runtime: Any) -> Any:
        return {"asked": state.get("asked", 0) + 1}

    def before_model(self, state: Any, runtime: Any) -> Any:
        return {"shown": state.get("shown", 0) + 1}

    def after_model(self, state: Any, runtime: Any) -> Any:
        runtime.stream_writer({"asked": state["asked"]})
        return None

    def after_agent(self, state: Any, runtime: Any) -> Any:
        return {"messages": [AIMessage(f"asked {state['asked']} times")]}


def hooks(parts: Parts) -> list[Any]:
    ledger = parts.ledger

    @before_agent
    def begins(state: Any, runtime: Any) -> Any:
        ledger["begins"] += 1

    @before_model
    def asks(state: Any, runtime: Any) -> Any:
        ledger["asks"] += 1

    @after_model
    async def answered(state: Any, runtime: Any) -> Any:
        ledger["answered"] += 1

    @after_agent
    def ends(state: Any, runtime: Any) -> Any:
        ledger["ends"] += 1

    return [begins, asks, answered, ends]


def jumping(parts: Parts) -> Any:
    @before_model
    @hook_config(can_jump_to=["end"])
    def stops(state: Any, runtime: Any) -> Any:
        if len(state["messages"]) > 2:
            return {"jump_to": "end", "messages": [AIMessage("stopped")]}
        return None

    return stops


def prompting(parts: Parts) -> Any:
    @dynamic_prompt
    def prompt(request: Any) -> str:
        return f"After {len(request.messages)} messages."

    return prompt


def sync_model(parts: Parts) -> Any:
    ledger = parts.ledger

    @wrap_model_call
    def wrap(request: Any, handler: Any) -> Any:
        ledger["wrapped"] += 1
        return handler(request.override(system_message=SystemMessage("Be brief.")))

    return wrap


def sync_tool(parts: Parts) -> Any:
    @wrap_tool_call
    def wrap(request: Any, handler: Any) -> Any:
        answer = handler(request)
        return answer.model_copy(update={"content": f"{answer.text} (wrapped)"})

    return wrap


def async_model(parts: Parts) -> Any:
    @wrap_model_call
    async def wrap(request: Any, handler: Any) -> Any:
        return await handler(request)

    return wrap


def async_tool(parts: Parts) -> Any:
    @wrap_tool_call
    async def wrap(request: Any, handler: Any) -> Any:
        answer = await handler(request)
        return answer.model_copy(update={"content": f"{answer.text} (wrapped)"})

    return wrap


def sending(ledger: Any) -> Any:
    @tool
    def send(to: str) -> str:
        """Send a message."""
        ledger[f"once: sent to {to}"] += 1
        return f"sent to {to}"

    return send


def is_sync(call: str) -> bool:
    return not is_async(call)


SEND = scripted(call("send", to="ann"), "Done.")
APPROVE = Command(resume={"decisions": [{"type": "approve"}]})
EDIT = {"name": "send", "args": {"to": "bob"}}
ASKED: dict[str, Any] = {
    "tools": (sending,),
    "model": SEND,
    "needs_saver": True,
    "wrapped": {"tools": {"send": "commit"}},
}

MIDDLEWARES: dict[str, Scenario] = {
    "context editing": using(
        fixed(lambda: ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=1, keep=1)])), model=TWICE
    ),
    "file search": using(
        fixed(lambda: FilesystemFileSearchMiddleware(root_path="tests/like_plain", use_ripgrep=False)),
        model=scripted(call("glob_search", pattern="covering.py"), "Done."),
    ),
    "approval": using(fixed(lambda: HumanInTheLoopMiddleware({"send": True})), **ASKED, turns=[HELLO, APPROVE]),
    "approval, edited": using(
        fixed(lambda: HumanInTheLoopMiddleware({"send": True})),
        **ASKED,
        turns=[HELLO, Command(resume={"decisions": [{"type": "edit", "edited_action": EDIT}]})],
    ),
    "approval, rejected": using(
        fixed(lambda: HumanInTheLoopMiddleware({"send": True})),
        **ASKED,
        turns=[HELLO, Command(resume={"decisions": [{"type": "reject", "message": "no"}]})],
    ),
    "emulated tools": using(fixed(lambda: LLMToolEmulator(model=scripted("emulated")))),
    "tool selection": using(
        fixed(lambda: LLMToolSelectorMiddleware(model=scripted(call("ToolSelectionResponse", tools=["look"])))),
        turns=[HELLO],
    ),
    "model call limit of the run": using(fixed(lambda: ModelCallLimitMiddleware(run_limit=2)), model=ENDLESS),
    "model call limit of the thread": using(fixed(lambda: ModelCallLimitMiddleware(thread_limit=4)), model=ENDLESS),
    "model call limit that raises": using(
        fixed(lambda: ModelCallLimitMiddleware(run_limit=2, exit_behavior="error")), model=ENDLESS, turns=[HELLO]
    ),
    "model fallback": using(
        fixed(lambda: ModelFallbackMiddleware(scripted("fallen back"))), model=scripted(ValueError("down"))
    ),
    "model retry": using(
        fixed(lambda: ModelRetryMiddleware(max_retries=1, initial_delay=0, jitter=False)),
        model=scripted(ValueError("down")),
    ),
    "personal data": using(
        fixed(lambda: PIIMiddleware("email", apply_to_output=True, apply_to_tool_results=True)), model=MAIL
    ),
    "personal data, blocked": using(
        fixed(lambda: PIIMiddleware("email", strategy="block", apply_to_output=True)), model=MAIL, turns=[HELLO]
    ),
    "provider's tool search": using(fixed(ProviderToolSearchMiddleware)),
    "shell": using(
        fixed(lambda: ShellToolMiddleware(shell_command=("/bin/bash",))),
        model=scripted(call("shell", command="export X=1"), call("shell", command="echo X=$X"), "Done."),
        turns=[HELLO],
        only=lambda call: call != "events_v1",  # which copies the state, and a shell cannot be copied
    ),
    "summarization": using(
        fixed(lambda: SummarizationMiddleware(scripted("summary"), trigger=("messages", 4), keep=("messages", 2))),
        model=following({"hello": calling("a"), "a: found": calling("b"), "b: found": calling("c")}),
    ),
    "to-do list": using(
        fixed(TodoListMiddleware),
        model=scripted(call("write_todos", todos=[{"content": "look", "status": "pending"}]), "Done."),
    ),
    "tool call limit of the run": using(fixed(lambda: ToolCallLimitMiddleware(run_limit=2)), model=TWICE),
    "tool call limit of the thread": using(
        fixed(lambda: ToolCallLimitMiddleware(thread_limit=4, exit_behavior="end")), model=TWICE
    ),
    "tool errors": using(
        fixed(lambda: ToolErrorMiddleware(lambda error, request: f"failed: {error}")), tools=(failing_tool,)
    ),
    "tool retry": using(
        fixed(lambda: ToolRetryMiddleware(max_retries=1, initial_delay=0, jitter=False)), tools=(failing_tool,)
    ),
    "private state": using(fixed(CountsTurns)),
    "hooks": Scenario(agent_with(looking, middleware=hooks), [HELLO, MORE], only=is_async),
    "jump to the end": using(jumping),
    "dynamic prompt": using(prompting),
    "sync model wrapper": using(sync_model, only=is_sync),
    "sync tool wrapper": using(sync_tool, only=is_sync),
    "async model wrapper": using(async_model, only=is_async),
    "async tool wrapper": using(async_tool, only=is_async),
    "structured by a tool": Scenario(
        agent_with(
            looking,
            model=scripted(call("look", word="a"), call("Answer", word="a", n=1)),
            response_format=lambda parts: ToolStrategy(Answer),
        ),
        [HELLO],
    ),
    "structured, corrected": Scenario(
        agent_with(
            model=scripted(call("Answer", word="a", n="many"), call("Answer", word="a", n=1)),
            response_format=lambda parts: ToolStrategy(Answer),
        ),
        [HELLO],
        {"step_after": "model"},
    ),
    "structured by the provider": Scenario(
        agent_with(
            looking,
            model=scripted(call("look", word="a"), '{"word": "a", "n": 1}'),
            response_format=lambda parts: ProviderStrategy(Answer),
        ),
        [HELLO, {"messages": [HumanMessage("again")]}],
    ),
}
