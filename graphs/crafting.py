"""AMC around the text-world agent, with the shipped policy and critic, for `langgraph dev` and Studio.

Say `task 7`, or paste a whole crafting instruction. Another critic comes with the run's context.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NotRequired

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from typing_extensions import TypedDict

from amc_agents import AtSteps, amc, text_agent
from amc_agents.envs.crafting import CraftingWorld, generate_task
from amc_agents.envs.crafting.instruction import parse_instruction
from amc_agents.errors import ConfigurationError
from amc_agents.models.embedded import EmbeddedChatModel

CRITICS = ("embedded:crafting", "uniform")
POLICY = EmbeddedChatModel(temperature=0.7)
POLICY.invoke("hello")  # The weights are read here, and not while the server's event loop waits.


class Context(TypedDict):
    """What a run may choose."""

    critic: NotRequired[Literal["embedded:crafting", "uniform"]]


def instruction(text: str) -> str:
    numbered = re.fullmatch(r"(?:task\s*)?([0-9]{1,9})", text.strip(), re.IGNORECASE)
    task = generate_task(int(numbered[1]), "play", optimal_steps=(4, 9)) if numbered else parse_instruction(text)
    return task.instruction


# A run's critic is one of these names, and nothing else that a critic's string can say.
particles = amc(text_agent(POLICY), CRITICS[0], critics={name: name for name in CRITICS},
                n_particles=15, resample=AtSteps(4, 8), beta=0.1, horizon=20,
                environment=lambda state: (CraftingWorld(), parse_instruction(state["messages"][0].text)))  # fmt: skip


async def play(state: MessagesState, config: RunnableConfig, runtime: Runtime[Context]) -> dict[str, Any]:
    name = (runtime.context or {}).get("critic", CRITICS[0])
    try:
        asked = instruction(state["messages"][-1].text)
        run = await particles.arun({"messages": [HumanMessage(asked)]}, config, context={"critic": name})
    except ConfigurationError as error:
        return {"messages": [AIMessage(f"Say `task 7` or paste a task; critics: {', '.join(CRITICS)}. ({error})")]}
    crafted = sum(one.return_ > 0 for one in run.population.trajectories)
    values = run.usage["critic"].calls if "critic" in run.usage else 0
    said = f"{crafted} of {len(run.population.trajectories)} particles made it; {name} computed {values} values."
    return {"messages": [*run.best_output["messages"], AIMessage(said)]}


graph = StateGraph(MessagesState, Context).add_node(play).add_edge(START, "play").compile(name="crafting")  # type: ignore[call-overload]
