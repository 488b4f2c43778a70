"""AMC around the text agent, with the policy and critic of the package, for `langgraph dev` and Studio.

Send `task 7` or a whole crafting instruction. The run's context chooses another critic.
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
POLICY.invoke("hello")  # Load the weights now, not inside the server's event loop.


class Context(TypedDict):
    """Settings of a run."""

    critic: NotRequired[Literal["embedded:crafting", "uniform"]]


def instruction(text: str) -> str:
    numbered = re.fullmatch(r"(?:task\s*)?([0-9]{1,9})", text.strip(), re.IGNORECASE)
    task = generate_task(int(numbered[1]), "play", optimal_steps=(4, 9)) if numbered else parse_instruction(text)
    return task.instruction


# A run can name only one of these critics, not an arbitrary critic string.
particles = amc(text_agent(POLICY), CRITICS[0], critics={name: name for name in CRITICS},
                n_particles=15, resample=AtSteps(4, 8), beta=0.1, horizon=20,
                environment=lambda state: (CraftingWorld(), parse_instruction(state["messages"][0].text)))  # fmt: skip


async def play(state: MessagesState, config: RunnableConfig, runtime: Runtime[Context]) -> dict[str, Any]:
    name = (runtime.context or {}).get("critic", CRITICS[0])
    try:
        task = instruction(state["messages"][-1].text)
        run = await particles.arun({"messages": [HumanMessage(task)]}, config, context={"critic": name})
    except ConfigurationError as error:
        return {"messages": [AIMessage(f"Send `task 7` or paste a task; critics: {', '.join(CRITICS)}. ({error})")]}
    crafted = sum(trajectory.return_ > 0 for trajectory in run.population.trajectories)
    values = run.usage["critic"].calls if "critic" in run.usage else 0
    summary = f"{crafted} of {len(run.population.trajectories)} particles crafted it; {name} computed {values} values."
    return {"messages": [*run.best_output["messages"], AIMessage(summary)]}


graph = StateGraph(MessagesState, Context).add_node(play).add_edge(START, "play").compile(name="crafting")  # type: ignore[call-overload]
