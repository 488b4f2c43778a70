"""The frozen configurations of LAC, PNLC, PSRL and IDS: name -> a function that plays one and returns its record."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore

from amc_agents import (
    ActorCritic,
    CritiqueRefine,
    InformationDirected,
    PosteriorSampling,
    StorePosterior,
    Task,
    TimeStep,
    actor_critic_node,
    critique_refine_node,
    information_directed_nodes,
    posterior_sampling_nodes,
    use_environment,
)
from amc_agents.psrl import exploring_text_agent
from amc_agents.testing import ScriptedChatModel
from tests.frozen.parts import call, counted
from tests.frozen.record import Heard, plain, texts

Record = dict[str, Any]
DECISIONS: dict[str, Callable[[], Record]] = {}
GIVEN = {"messages": [HumanMessage("Go right.")]}


@tool
def go(to: str) -> str:
    """Go somewhere."""
    return f"you went {to}"


def rounds_of(messages):
    return sum(isinstance(message, ToolMessage) for message in messages)


class InTurn:
    """A model that answers each request of a round with the next of its ways, and ends after two rounds."""

    def __init__(self, *ways):
        self.ways, self.asked = ways, 0

    def __call__(self, messages):
        prompt = messages[-1].text
        if "---" in prompt:  # An imagined step.
            return counted("Observation: It goes on.\nReflection: Too early to say. This step is UNKNOWN.\n"
                           "Thought: on\nAction: wait", messages)  # fmt: skip
        if rounds_of(messages) == 2:
            return counted(f"done: {messages[-1].text}", messages)
        self.asked += 1
        return counted(call("go", f"go-{self.asked}", to=self.ways[self.asked % len(self.ways)]), messages)


class Odds:
    """A verdict critic: log-odds by words of the last action."""

    def __init__(self, **odds):
        self.odds = odds

    async def log_odds(self, trajectories):
        said = [trajectory.steps[-1].action for trajectory in trajectories]
        return np.array([max((q for word, q in self.odds.items() if word in each), default=0.0) for each in said])


def heard(agent: Any, way: str, config: Any = None) -> Record:
    return Heard(agent, GIVEN, way, config).record()


class Warm(ScriptedChatModel):
    """A model with a temperature, for the greedy turn."""

    temperature: float = 1.0


def lac(
    way: str, critic: Any = None, ways: tuple[str, ...] = ("left", "right", "left", "back"), **settings: Any
) -> Record:
    middleware = ActorCritic(critic or Odds(right=1.5, back=-0.5), **{"k": 4, **settings})
    agent = create_agent(Warm(respond=InTurn(*ways)), [go], middleware=[middleware])
    return heard(agent, way)


DECISIONS |= {
    "lac sync": lambda: lac("stream"),
    "lac async": lambda: lac("astream"),
    "lac votes": lambda: lac("astream", "uniform", use_critic=False),
    "lac critic alone": lambda: lac("astream", alpha=float("inf")),
    "lac greedy": lambda: lac("stream", greedy=True, alpha=0.5),
    "lac rollouts": lambda: lac("astream", depth=2, k=2),
    "lac paper": lambda: lac("astream", depth=1, reflect=True, k=2, ways=("left", "right")),
}


def lac_node() -> Record:
    builder = StateGraph(MessagesState)
    builder.add_node(
        "decide", actor_critic_node(ScriptedChatModel(respond=InTurn("left", "right")), Odds(right=1.0), k=3)
    )
    builder.add_edge(START, "decide")
    return heard(builder.compile(), "astream")


DECISIONS["lac node"] = lac_node

# PNLC


class Thinker:
    """A model that goes left unless a critique makes that unlikely to end well."""

    def __init__(self):
        self.asked = 0

    def __call__(self, messages):
        return counted(self._answer(messages, messages[-1].text), messages)

    def _answer(self, messages, prompt):
        if "no two alike" in prompt:
            number = int(re.findall(r"name (\d+), no two", prompt)[0])
            word = "rich" if "to be good" in prompt else "poor"
            return "\n".join(f"Goal: You are {word}, way {i}." for i in range(1, number + 1))
        if "Decision: <KEEP" in prompt:
            bad = max(float(each) for each in re.findall(r"- bad, likelihood ([\d.]+)", prompt))
            return f"Diagnosis: So.\nDecision: {'REFINE' if bad > 0.5 else 'KEEP'}" + (
                "\nThought: I go right." if bad > 0.5 else "")  # fmt: skip
        if "Choice: <its number>" in prompt:
            return "Choice: 2"
        if "its number and its probability" in prompt:
            return "1: 0.125\n2: 0.125\n3: 0.875\n4: 0.875"
        if rounds_of(messages) == 1:
            return f"done: {[each for each in messages if isinstance(each, ToolMessage)][-1].text}"
        self.asked += 1
        to = "right" if "I go right." in prompt else "left"
        answer = call("go", f"go-{self.asked}", to=to)
        return answer.model_copy(update={"content": "" if to == "right" else "I go left."})


class Reaches:
    """A goal critic by words of thought and goal."""

    def __init__(self, rich, poor):
        self.likelihoods = {"rich": rich, "poor": poor}

    async def reach(self, trajectory, thought, goals):
        by_word = [next(p for word, p in self.likelihoods.items() if word in goal) for goal in goals]
        return np.array(by_word if "left" in thought else [0.5] * len(goals))


def pnlc(way: str, critic: Any, **settings: Any) -> Record:
    agent = create_agent(ScriptedChatModel(respond=Thinker()), [go], middleware=[CritiqueRefine(critic, **settings)])
    return heard(agent, way)


def pnlc_node() -> Record:
    builder = StateGraph(MessagesState)
    model = ScriptedChatModel(respond=Thinker())
    builder.add_node("decide", critique_refine_node(model, Reaches(0.125, 0.875)))
    builder.add_edge(START, "decide")
    return heard(builder.compile(), "stream")


DECISIONS |= {
    "pnlc refines in sync": lambda: pnlc("stream", Reaches(0.125, 0.875)),
    "pnlc refines": lambda: pnlc("astream", Reaches(0.125, 0.875)),
    "pnlc keeps": lambda: pnlc("astream", Reaches(0.875, 0.125)),
    "pnlc chooses": lambda: pnlc("astream", Reaches(0.125, 0.875), refine=False, k=2),
    "pnlc rounds and goals": lambda: pnlc("astream", Reaches(0.125, 0.875), n_positive=1, n_negative=3, m=3),
    "pnlc node": pnlc_node,
}

# PSRL and IDS


def roles(messages):
    """A model that plays every role of PSRL and IDS: what is known is one line for each arm that was pulled."""
    prompt = messages[-1].text
    fields = dict(re.findall(r"^<(\w+)>\n(.*?)\n</\1>", prompt, re.MULTILINE | re.DOTALL))
    known = fields.get("posterior", "")
    if prompt.endswith("Expected regret: <number>"):
        return f"Expected regret: {0.25 * (_arm(fields['action']) + 1)}"
    if prompt.endswith("Information gain: <number>"):
        return f"Information gain: {0.5 if _arm(fields['action']) == 1 and 'paid' not in known else 0.125}"
    if "experience" in fields:
        paid = re.findall(r"Arm \d paid \d\.", fields["experience"])
        return "Posterior:\n" + "\n".join([known, *paid])
    if "hypothesis" in fields:
        return f"I trust it.\nAction: {fields['hypothesis'][-1]}"
    return f"Hypothesis:\nThe best arm is {known.count('paid') % 3}"


def _arm(action):
    return int(re.findall(r"\d", action)[-1])


@tool
def pull(arm: int) -> str:
    """Pull an arm."""
    return f"Arm {arm} paid {arm % 2}."


def player(messages):
    """Pulls the arm of its hypothesis once, then sums up."""
    if isinstance(messages[-1], ToolMessage):
        return counted(f"Seen: {messages[-1].text}", messages)
    return counted(call("pull", "pull", arm=int(re.findall(r"best arm is (\d)", messages[0].text)[0])), messages)


def arms(messages):
    """One pull of any arm, after which the model sums up."""
    pulled = isinstance(messages[-1], ToolMessage)
    return [] if pulled else [{"name": "pull", "args": {"arm": arm}} for arm in range(3)]


def exploring(way: str, middleware: Any, respond: Any) -> Record:
    """Three episodes of one agent, and what it has learned after them."""
    store = InMemoryStore()
    agent = create_agent(ScriptedChatModel(respond=respond), [pull], middleware=[middleware], store=store,
                         checkpointer=InMemorySaver())  # fmt: skip
    episodes = [heard(agent, way, {"configurable": {"thread_id": f"{number}"}}) for number in range(3)]
    return {"episodes": episodes, "learned": learned(store)}


def learned(store: Any) -> list[str]:
    return [version.text for version in asyncio.run(StorePosterior(store, "amc.posterior").history())]


def known(**options: Any) -> Any:
    return {"prior": "Nothing is known.", "world": "Three arms.", "seed": 1, **options}


def psrl(way: str) -> Record:
    return exploring(way, PosteriorSampling(ScriptedChatModel(respond=roles), **known()), player)


def ids(way: str) -> Record:
    sums_up = lambda messages: counted(f"Seen: {messages[-1].text}", messages)  # noqa: E731
    return exploring(way, InformationDirected(ScriptedChatModel(respond=roles), arms, **known()), sums_up)


class Arms:
    """A text world of two pulls."""

    def __init__(self):
        self.pulls = 0

    async def reset(self, task):
        return TimeStep.restart(task.instruction)

    async def step(self, action):
        self.pulls += 1
        answer = TimeStep.termination if self.pulls == 2 else TimeStep.transition
        return answer(f"Arm {action} paid {int(action) % 2}.", float(int(action) % 2))

    async def fork(self, seed):
        raise NotImplementedError

    async def close(self):
        pass


def nodes(make: Any, way: str) -> Record:
    """Two episodes in a text world."""
    store = InMemoryStore()
    agent = exploring_text_agent(make(), store=store)
    played = []
    for number in range(2):
        world = Arms()
        asyncio.run(world.reset(Task(f"{number}", "Pull.")))
        with use_environment(world):
            given = {"messages": [HumanMessage("Pull.")]}
            output = agent.invoke(given) if way == "sync" else asyncio.run(agent.ainvoke(given))
        played.append(texts(output["messages"]))
    return plain({"episodes": played, "learned": learned(store)})


def psrl_nodes() -> Any:
    model = ScriptedChatModel(respond=roles)
    policy = ScriptedChatModel(respond=lambda messages: AIMessage(
        f"Action: {re.findall(r'best arm is (.)', messages[0].text)[0]}"))  # fmt: skip
    return posterior_sampling_nodes(model, policy=policy, prior="Nothing is known.", seed=0)


def ids_nodes() -> Any:
    return information_directed_nodes(ScriptedChatModel(respond=roles), ["0", "1", "2"], prior="Nothing is known.",
                                      seed=0)  # fmt: skip


DECISIONS |= {
    "psrl sync": lambda: psrl("stream"),
    "psrl async": lambda: psrl("astream"),
    "psrl nodes": lambda: nodes(psrl_nodes, "sync"),
    "ids sync": lambda: ids("stream"),
    "ids async": lambda: ids("astream"),
    "ids nodes": lambda: nodes(ids_nodes, "async"),
}
