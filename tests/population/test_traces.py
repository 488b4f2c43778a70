"""Traces of a population: every particle's run, its place and its outcome."""

import asyncio

import pytest
from langchain_core.callbacks import BaseCallbackHandler, UsageMetadataCallbackHandler, get_usage_metadata_callback
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tracers.base import BaseTracer
from langchain_core.tracers.context import collect_runs
from langgraph.graph import END, START, MessagesState, StateGraph

from amc_agents import AmcSettings
from amc_agents.population.wrap import amc
from amc_agents.runtime.effects import effect
from amc_agents.smc import AtSteps, Never
from tests.arguments import arguments
from tests.population.worlds import TASK, Prefers, ReturnSoFar, SumWorld, digits, number_agent, start, sum_world


class Tree(BaseTracer):
    """Records finished traces, and runs that started below an ended run."""

    def __init__(self):
        super().__init__()
        self.roots, self.started, self.orphans = [], [], []

    def _persist_run(self, run):
        self.roots.append(run)

    def _start_trace(self, run):
        self.started.append(run)
        if run.parent_run_id and str(run.parent_run_id) not in self.run_map:
            self.orphans.append(run.name)
        super()._start_trace(run)

    @property
    def runs(self):
        def below(run):
            return [run, *(each for child in run.child_runs for each in below(child))]

        return [each for root in self.roots for each in below(root)]

    @property
    def particles(self):
        return [run for run in self.runs if run.name.startswith("particle ")]


@pytest.fixture(params=["sync", "async"])
def play(request):
    """Run a graph in sync or async."""

    def run(graph, config):
        return graph.run(start(), config) if request.param == "sync" else asyncio.run(graph.arun(start(), config))

    return run


def traced(play, tree=None, **settings):
    tree = Tree() if tree is None else tree
    options = {"environment": lambda state: sum_world(state, 5), "n_particles": 5, "resample": AtSteps(1, 2), "seed": 1}
    graph = amc(number_agent(), ReturnSoFar(3.0), **arguments(**{**options, **settings}))
    return play(graph, {"callbacks": [tree]}), tree


@pytest.mark.thorough  # quick: test_a_particles_run_names_its_ancestor
def test_all_traced_runs_form_one_tree(play):
    _, tree = traced(play)
    [root] = tree.roots
    assert root.name == "text_agent"
    assert tree.orphans == []
    assert {run.id for run in tree.runs} == {run.id for run in tree.started}
    names = {run.id: run.name for run in tree.runs}
    assert {names[run.parent_run_id] for run in tree.particles} == {"propagate"}
    assert all(run.end_time is not None and run.error is None for run in tree.runs)


def test_a_particles_run_names_its_ancestor(play):
    run, tree = traced(play)
    first, second = (point.ancestors.tolist() for point in run.history[:2])
    begun = [(run.name, run.metadata["ancestor"], run.metadata["step"]) for run in tree.particles]
    forks = [
        (f"particle {slot} from particle {source} at step {step}", source, step)
        for step, ancestors in ((1, first), (2, second))
        for slot, source in enumerate(ancestors)
        if ancestors.count(source) > 1  # the forked particle itself starts again too
    ]
    assert sorted(begun) == sorted([*((f"particle {slot}", None, 0) for slot in range(5)), *forks])
    assert len({run.metadata["amc_run"] for run in tree.particles}) == 1


def test_every_run_below_a_particle_carries_its_step(play):
    _, tree = traced(play, resample=AtSteps(2), horizon=4)
    for particle in tree.particles:
        nodes = [run for run in particle.child_runs if run.name in ("model", "tools")]
        first = particle.metadata["step"]
        assert [run.metadata["step"] for run in nodes] == [first + i // 2 for i in range(len(nodes))]
        assert {run.metadata["particle"] for run in nodes} == {particle.metadata["particle"]}
    models = [run for run in tree.runs if run.run_type == "llm"]
    assert len(models) == len([run for run in tree.runs if run.name == "model" and run.run_type == "chain"])
    assert all("particle" in run.metadata and "step" in run.metadata for run in models)


def test_discarded_and_truncated_particles_end_without_an_error(play):
    run, tree = traced(play, horizon=4)
    discarded = [particle for particle in tree.particles if particle.metadata.get("outcome") == "discarded"]
    n_forks = sum(slot != source for point in run.history[:2] for slot, source in enumerate(point.ancestors))
    assert len(discarded) == n_forks > 0
    assert all("discarded" in particle.tags for particle in discarded)
    cut = [particle for particle in tree.particles if "horizon" in (particle.tags or [])]
    assert len(cut) == 5
    assert all(len(particle.outputs["messages"]) == 9 for particle in cut)


def test_particles_unfinished_at_an_early_stop_end_without_an_error(play):
    class EndsAtEven(SumWorld):
        async def step(self, action):
            answer = await super().step(action)
            return answer if float(action) % 2 else type(answer).termination(answer.observation, answer.reward)

    _, tree = traced(play, environment=lambda state: (EndsAtEven(40), TASK), stop_at=0.0, resample=Never())
    assert "unfinished" in {tag for particle in tree.particles for tag in particle.tags or []}
    assert all(run.error is None for run in tree.runs)


def test_a_particle_at_its_agents_end_is_discarded_without_an_error(play):
    def tools(state):
        return {"messages": [AIMessage(digits(state["messages"])), HumanMessage("ok")]}

    builder = StateGraph(MessagesState)
    builder.add_node("tools", effect("read")(tools))
    builder.add_edge(START, "tools")
    builder.add_conditional_edges("tools", lambda state: END if len(state["messages"]) > 4 else "tools")
    tree = Tree()

    graph = amc(builder.compile(), Prefers(0), n_particles=4, resample=AtSteps(2), beta=1.0, select="value", seed=0)
    play(graph, {"callbacks": [tree]})
    assert sum("discarded" in (run.tags or []) for run in tree.particles) == 3
    assert all(run.error is None for run in tree.runs)


@pytest.mark.thorough  # quick: test_a_particles_run_names_its_ancestor
def test_tracing_changes_no_result_and_makes_no_requests(play):
    with_tracer, tree = traced(play)
    graph = amc(number_agent(), ReturnSoFar(3.0), environment=lambda state: sum_world(state, 5), n_particles=5,
                resample=AtSteps(1, 2), seed=1)  # fmt: skip
    alone = play(graph, None)
    assert with_tracer.usage == alone.usage
    assert sum(run.run_type == "llm" for run in tree.runs) == alone.usage["policy"].calls
    actions = [[[step.action for step in each.steps] for each in run.population.trajectories]
               for run in (with_tracer, alone)]  # fmt: skip
    assert actions[0] == actions[1]


def test_a_failed_particle_is_an_error_in_the_trace(play):
    def respond(messages):
        answer = digits(messages)
        return RuntimeError("the provider is down") if answer.endswith("0") else answer

    tree = Tree()
    run = play(
        amc(
            number_agent(respond),
            environment=sum_world,
            n_particles=6,
            resample=Never(),
            settings=AmcSettings(quorum=1),
            seed=0,
        ),
        {"callbacks": [tree]},
    )
    errors = ["the provider is down" in (particle.error or "") for particle in tree.particles]
    assert errors == list(run.population.failed)
    assert 0 < sum(errors) < 6


def reporting(messages):
    usage = {"input_tokens": 10, "output_tokens": len(messages), "total_tokens": 10 + len(messages)}
    return AIMessage(digits(messages), usage_metadata=usage, response_metadata={"model_name": "script"})


def test_usage_callbacks_add_up_to_the_runs_own_usage(play):
    graph = amc(number_agent(reporting), ReturnSoFar(3.0), environment=sum_world, n_particles=6,
                resample=AtSteps(1, 2), horizon=3)  # fmt: skip
    handler = UsageMetadataCallbackHandler()
    with get_usage_metadata_callback() as hooked:
        policy = play(graph, {"callbacks": [handler]}).usage["policy"]
    for counted in (handler, hooked):
        usage = counted.usage_metadata["script"]
        assert (usage["input_tokens"], usage["output_tokens"]) == (policy.input_tokens, policy.output_tokens)


def test_collected_runs_contain_the_particles(play):
    with collect_runs() as collector:
        play(amc(number_agent(), environment=sum_world, n_particles=3, horizon=2), None)
    names, waiting = [], list(collector.traced_runs)
    while waiting:
        run = waiting.pop()
        names.append(run.name)
        assert run.error is None
        waiting += run.child_runs
    assert sorted(name for name in names if name.startswith("particle")) == ["particle 0", "particle 1", "particle 2"]


def test_each_event_of_a_run_is_reported_once(play):
    events = []

    class Listener(BaseCallbackHandler):
        def on_chain_start(self, *args, run_id, **kwargs):
            events.append(("start", run_id))

        def on_chain_end(self, *args, run_id, **kwargs):
            events.append(("end", run_id))

        def on_chain_error(self, *args, run_id, **kwargs):
            events.append(("error", run_id))

    traced(play, Listener(), horizon=3)
    assert len(set(events)) == len(events)
    assert {kind for kind, _ in events} == {"start", "end"}
    assert sum(kind == "start" for kind, _ in events) == sum(kind == "end" for kind, _ in events)
