"""A canary whose agents answer with runs of the bank: the graph itself decides and stops."""

import numpy as np
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from amc_agents.operations.rollout import canary
from reproduce.rollout.deployments import Bank
from tests.operations.rollout.agents import HELLO, thread


@pytest.mark.thorough
@pytest.mark.parametrize(("arm", "stops"), [("harmful", True), ("better", False), ("plain", False)])
def test_a_canary_stops_itself_where_the_critic_is_harmful(tmp_path, arm, stops):
    bank, rng = Bank(), np.random.default_rng(0)

    def playing(of_arm):
        def tools(state: MessagesState):
            return {"messages": [AIMessage(str(bank.draw(rng, "hard" if rng.random() < 0.5 else "easy", of_arm)))]}

        return StateGraph(MessagesState).add_node(tools).add_edge(START, "tools").compile()

    graph = canary(playing("plain"), playing(arm), 0.3, folder=tmp_path, window=0, salt="a test")
    for user in range(600):
        answer = graph.invoke(HELLO, thread(f"user {user}"))["messages"][-1].text
        graph.outcome(f"user {user}", float(answer))
        if user % 50 == 49:
            graph.close()
            if graph.report().stopped:
                break
    report = graph.report()
    assert (report.stopped is not None) == stops
    assert report.verdict == {"harmful": "worse", "better": "better", "plain": "not yet"}[arm]
    if stops:
        before = report.comparison.arms["better"].n_calls
        for user in range(600, 650):
            graph.invoke(HELLO, thread(f"user {user}"))
        assert graph.report().comparison.arms["better"].n_calls == before
