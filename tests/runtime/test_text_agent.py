"""The ReAct agent for text worlds."""

from langgraph.channels.binop import BinaryOperatorAggregate

from amc_agents.runtime.world import use_environment
from tests.population.worlds import SumWorld, number_agent, start


async def test_each_message_is_reduced_once(monkeypatch):
    reduced = []
    update = BinaryOperatorAggregate.update

    def counted(channel, values):
        reduced.extend(values)
        return update(channel, values)

    monkeypatch.setattr(BinaryOperatorAggregate, "update", counted)
    with use_environment(SumWorld(5)):
        output = await number_agent().ainvoke(start())
    assert len(reduced) == len(output["messages"]) == 11
