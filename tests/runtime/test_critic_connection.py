"""A critic connects to its server before the first call of the policy, and only if it may be called."""

from __future__ import annotations

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage

from amc_agents import ActorCritic, CritiqueRefine
from amc_agents.critics.adapting import connect
from amc_agents.critics.uses import for_amc, for_lac
from amc_agents.errors import CheckpointError, ConfigurationError, CriticError, CriticServerError, QuorumLost
from amc_agents.population.wrap import amc
from amc_agents.smc import AtSteps, EveryStep, Never
from amc_agents.testing import ScriptedChatModel
from amc_agents.usage import Usage, record
from tests.arguments import arguments
from tests.population.worlds import number_agent, start, sum_world

DEAD = "vllm:http://127.0.0.1:9?model=value&retry_for=0"
"""Nobody listens at the port "discard"."""


class Policy:
    """Answers 1 and counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, messages):
        self.calls += 1
        return "Action: 1"


class Server:
    """A critic whose connection succeeds or fails; records the order of calls."""

    def __init__(self, error=None):
        self.error, self.asked = error, []

    async def connect(self):
        self.asked.append("connect")
        record("critic", Usage(calls=1))
        if self.error is not None:
            raise self.error

    async def values(self, trajectories):
        self.asked.append("values")
        return np.zeros(len(trajectories))


def graph(critic, policy=None, **settings):
    given = {"resample": AtSteps(1), "n_particles": 3, **settings}
    return amc(number_agent(policy or Policy()), critic, **arguments(environment=sum_world, **given))


def test_a_dead_server_costs_no_call_of_the_policy():
    policy = Policy()
    with pytest.raises(CriticServerError, match=r"127\.0\.0\.1:9"):
        graph(DEAD, policy).run(start())
    assert policy.calls == 0


def test_a_call_that_names_a_dead_server_makes_no_policy_request():
    policy = Policy()
    with pytest.raises(CriticServerError):
        graph("uniform", policy).run(start(), context={"critic": DEAD})
    assert policy.calls == 0


def test_a_run_may_continue_without_its_critic_with_a_note():
    run = graph(DEAD, on_critic_error="uniform").run(start())
    assert run.notes[0].startswith("before the first step: the critic could not be connected")
    assert run.best.return_ == 4.0


def test_a_critic_that_cannot_be_asked_is_not_connected():
    critic = Server()
    assert graph(critic, resample=Never()).run(start()).best.return_ == 4.0
    assert graph(critic, resample=AtSteps(50)).run(start()).best.return_ == 4.0
    assert critic.asked == []
    assert "127.0.0.1" not in str(graph(DEAD, resample=Never()).run(start()).notes)


@pytest.mark.parametrize(
    "settings",
    [{"resample": Never(), "hide_rewards": True}, {"resample": Never(), "stop_at": 9.0}, {"resample": EveryStep()}],
)
def test_a_critic_that_may_be_asked_is_connected_first(settings):
    critic = Server()
    run = graph(critic, **settings).run(start())
    assert critic.asked[0] == "connect"
    assert critic.asked.count("connect") == 1
    assert run.usage["critic"].calls == 1, "what connecting costs is the run's"


def test_any_exception_of_connect_becomes_a_critic_error():
    with pytest.raises(CriticError, match=r"critic Server: connect\(\) failed: ConnectionError: gone"):
        graph(Server(ConnectionError("gone"))).run(start())
    run = graph(Server(ConnectionError("gone")), on_critic_error="uniform").run(start())
    assert "gone" in run.notes[0]


def test_another_model_than_the_checkpoints_is_never_passed_over():
    with pytest.raises(CheckpointError, match="another model"):
        graph(Server(CheckpointError("another model")), on_critic_error="uniform").run(start())


class OfBeta(Server):
    """Its description is known after it is connected."""

    predicts = "return"

    @property
    def beta(self):
        if not self.asked:
            raise CriticError("not connected")
        return 0.3


async def test_a_servers_own_description_is_compared_when_it_connects():
    policy = Policy()
    with pytest.raises(ConfigurationError, match=r"for beta 0\.3 and the run has beta 1"):
        await graph(OfBeta(), policy, beta=1.0).arun(start())
    assert policy.calls == 0
    await connect(for_amc(OfBeta(), beta=0.3))
    with pytest.raises(ConfigurationError, match=r"trained by eq\. 5"):
        await connect(for_lac(OfBeta()))


# --- decisions ---------------------------------------------------------------------------------------------------

DECIDING = {
    "lac": lambda critic, **more: ActorCritic(critic, depth=0, k=3, **more),
    "pnlc": lambda critic, **more: CritiqueRefine(critic, critique="value", **more),
}


@pytest.mark.parametrize("middleware", DECIDING.values(), ids=DECIDING)
@pytest.mark.parametrize("critic", [DEAD, Server(ConnectionError("gone"))], ids=["dead", "raises"])
def test_a_decision_connects_before_it_samples(middleware, critic):
    policy = Policy()
    agent = create_agent(ScriptedChatModel(respond=policy), [], middleware=[middleware(critic)])
    with pytest.raises(CriticError):
        agent.invoke(start())
    assert policy.calls == 0


@pytest.mark.parametrize("middleware", DECIDING.values(), ids=DECIDING)
def test_a_decision_may_be_made_without_the_critic(middleware):
    policy, critic = Policy(), Server(ConnectionError("gone"))
    made = middleware(critic, on_critic_error="uniform")
    events = list(
        create_agent(ScriptedChatModel(respond=policy), [], middleware=[made]).stream(start(), stream_mode="custom")
    )
    assert policy.calls > 0
    assert "gone" in str(events[-1]["notes"])
    assert critic.asked == ["connect"], "it is not waited for a second time"


def test_particles_that_decide_without_a_critic_call_no_policy():
    policy = Policy()
    agent = create_agent(ScriptedChatModel(respond=policy), [], middleware=[ActorCritic(DEAD, depth=0)])
    with pytest.raises(QuorumLost, match=r"127\.0\.0\.1:9"):
        amc(agent, "uniform", n_particles=2, step_after=["model"]).run(start())
    assert policy.calls == 0


def test_a_sync_connect_is_a_connect():
    class Sync:
        connected = False

        def connect(self):
            self.connected = True

        def values(self, trajectories):
            return [float(self.connected)] * len(trajectories)

    run = graph(Sync(), hide_rewards=True).run(start())
    assert run.population.values.tolist() == [1.0] * len(run.population.values)
    assert isinstance(run.best_output["messages"][-2], AIMessage)
