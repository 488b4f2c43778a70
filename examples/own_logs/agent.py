"""A small refund agent of a shop: a LangGraph agent with four tools, whose model is a script that makes mistakes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool

from amc_agents.testing import ScriptedChatModel

SKILL = 0.7
"""Probability that the script does a step right; it then repeats 1 mistake in 5."""
NAMES = ("Ahmed", "Bea", "Chloe", "Dmitri", "Elif", "Femi", "Greta", "Hana")
ITEMS = {"kettle": 40, "lamp": 60, "chair": 120, "blender": 80, "clock": 20}
METHODS = ("card", "invoice", "voucher")
COMPLAINTS = {
    "returns": ("I do not like it.", "It is too big for my kitchen."),
    "warranty": ("It broke after two months.", "It stopped working."),
    "delivery": ("It never arrived.", "The parcel was lost."),
}
_ACCEPTED, _REJECTED = "accepted.", "rejected."
"""Of the same length, so that the length of a conversation says little about its outcome."""
POLICIES = {"returns": (0.9, "90% of the price"), "warranty": (0.5, "half the price"), "delivery": (1.0, "all of it")}


@dataclass(frozen=True)
class Ticket:
    """A customer's request, and what the shop's books say about it."""

    order: int
    name: str
    item: str
    method: str
    topic: str
    complaint: str

    @property
    def text(self) -> str:
        """The customer's message."""
        what = f"Order {self.order}: {self.item}, paid by {self.method}."
        return f"{what} {self.complaint} I want my money back. {self.name}"

    @property
    def answer(self) -> str:
        """The right answer."""
        return f"We refund {round(ITEMS[self.item] * POLICIES[self.topic][0])} EUR."


def ticket(number: int) -> Ticket:
    """Generate a ticket: always the same for a number."""
    rng = random.Random(number)
    topic = rng.choice(list(COMPLAINTS))
    # Two digits that differ, so that a script can swap them by mistake.
    first, second = rng.sample(range(1, 10), 2)
    order = 1000 * first + 100 * second + rng.randrange(100)
    return Ticket(
        order, rng.choice(NAMES), rng.choice(list(ITEMS)), rng.choice(METHODS), topic, rng.choice(COMPLAINTS[topic])
    )


def make_agent(checkpointer: Any = None, *, seed: int | None = None) -> Any:
    """Return the agent. The tools only read, and know the ticket from the conversation."""
    script = _Script(random.Random(seed))
    tools = [find_order, verify_name, find_payment, read_policy]
    return create_agent(ScriptedChatModel(respond=script), tools, checkpointer=checkpointer)


def solved(messages: Sequence[BaseMessage]) -> bool:
    """Return the outcome of a conversation: every check succeeded, and the customer gets the right amount."""
    given = _ticket_of(messages)
    results = [message.text for message in messages if isinstance(message, ToolMessage)]
    accepted = {result.split()[0] for result in results if result.endswith(_ACCEPTED)}
    read = any(result.startswith(given.topic.capitalize()) for result in results)
    return accepted == {"Order", "Name", "Payment"} and read and messages[-1].text == given.answer


_TICKETS: dict[str, Ticket] = {}


def remember(given: Ticket) -> str:
    """Put a ticket into the shop's books, and return the customer's message."""
    _TICKETS[given.text] = given
    return given.text


def _ticket_of(messages: Sequence[BaseMessage]) -> Ticket:
    return next(_TICKETS[message.text] for message in messages if isinstance(message, HumanMessage))


@tool
def find_order(order: int, customer: str) -> str:
    """Look up an order of a customer."""
    known = any(each.order == order and each.name == customer for each in _TICKETS.values())
    return f"Order {order} of {customer}: {_ACCEPTED if known else _REJECTED}"


@tool
def verify_name(name: str, customer: str) -> str:
    """Compare a name with the customer's account."""
    return f"Name {name}: {_ACCEPTED if name == customer else _REJECTED}"


@tool
def find_payment(order: int, method: str) -> str:
    """Look up a payment."""
    known = any(each.order == order and each.method == method for each in _TICKETS.values())
    return f"Payment by {method}: {_ACCEPTED if known else _REJECTED}"


@tool
def read_policy(topic: str) -> str:
    """Read the shop's rules about returns, warranty or delivery."""
    return f"{topic.capitalize()}: the customer gets {POLICIES[topic][1]}."


class _Script:
    """Plays a model: it goes through the checks, does each right with probability `SKILL`, and then answers."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def __call__(self, messages: Sequence[BaseMessage]) -> AIMessage:
        given, rng = _ticket_of(messages), self._rng
        calls = [call for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
        results = [message.text for message in messages if isinstance(message, ToolMessage)]
        right = rng.random() < SKILL
        failed = bool(results) and results[-1].endswith(_REJECTED)
        # Most mistakes go unnoticed.
        stage = len({call["name"] for call in calls}) - (failed and rng.random() < 0.2)
        wrong_order = int("".join(str(given.order)[place] for place in (1, 0, 2, 3)))
        if stage == 0:
            order = given.order if right else wrong_order
            return _call("I look up the order.", "find_order", len(calls), order=order, customer=given.name)
        if stage == 1:
            name = given.name if right else rng.choice([each for each in NAMES if each != given.name])
            return _call("Who writes?", "verify_name", len(calls), name=name, customer=given.name)
        if stage == 2:
            method = given.method if right else rng.choice([each for each in METHODS if each != given.method])
            return _call("I look for the payment.", "find_payment", len(calls), order=given.order, method=method)
        if stage == 3:
            topic = given.topic if right else rng.choice([each for each in POLICIES if each != given.topic])
            return _call("I read the rules.", "read_policy", len(calls), topic=topic)
        share = POLICIES[calls[-1]["args"].get("topic", "returns")][0]
        return AIMessage(f"We refund {round(ITEMS[given.item] * share)} EUR.")


def _call(thought: str, name: str, number: int, /, **args: Any) -> AIMessage:
    call = {"name": name, "args": args, "id": f"call-{number}", "type": "tool_call"}
    return AIMessage(thought, tool_calls=[call])
