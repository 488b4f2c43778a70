from __future__ import annotations

import pickle
import sys

import pytest

from amc_agents.bench.engine import run_job
from amc_agents.bench.methods import Tuned, amc_hidden, best_of_n, react
from amc_agents.bench.own import OwnPlan, load_own_agent
from amc_agents.bench.report import Results, summarise
from amc_agents.bench.report_tables import markdown
from amc_agents.bench.run_files import causes_of, failed_runs
from amc_agents.bench.selection import MethodChoice
from amc_agents.errors import AmcError, ConfigurationError
from amc_agents.smc import AtSteps
from tests.bench.own_agents import write_agent, write_tasks


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def plan_of(folder, name, methods, **settings):
    return OwnPlan(name, folder / "tasks.jsonl", methods=tuple(methods), n_particles=4, **settings)


def run(plan, out, **settings):
    return run_job(plan.job(), out, **settings)


@pytest.mark.thorough
def test_the_plain_agent_and_a_deployable_pick(folder):
    name = write_agent(folder)
    write_tasks(folder, 6)
    tuned = Tuned(steps=(2,), beta=0.1)
    plan = plan_of(folder, name, [react(), best_of_n(), amc_hidden(tuned)], critic=f"{name}:Share")
    records = run(plan, folder / "out")
    assert len(records) == plan.n_runs == 18
    assert {record.scores.deployable is None for record in records} == {False}
    hidden = [record.scores.deployable for record in records if record.method == "amc-hidden"]
    plain = [record.scores.deployable for record in records if record.method == "react"]
    assert sum(hidden) > sum(plain)  # the critic knows the score


@pytest.mark.thorough
def test_a_run_ends_at_its_first_success(folder):
    name = write_agent(folder)
    write_tasks(folder, 8)
    own = plan_of(folder, name, [], critic=f"{name}:Share")
    plan, notes = MethodChoice(["best-of-n-stop", "amc-stop"]).applied_to(own)
    assert notes == []
    goes_on = {method.name: method for method in own.standard_methods()}
    for method in plan.methods:
        other = goes_on[method.name.removesuffix("-stop")]
        assert (method.temperature, method.resample, method.beta) == (other.temperature, other.resample, other.beta)
    records = run(plan, folder / "out")
    assert len(records) == plan.n_runs == 16
    assert any(record.scores.success for record in records)
    for record in records:
        assert record.scores.success == any("stopped at return 1" in note for note in record.notes)


def test_commit_tools_never_run(folder):
    name = write_agent(folder)
    write_tasks(folder, 2)
    own = load_own_agent(name)
    assert own.check() == ["pay"]
    records = run(plan_of(folder, name, [react()]), folder / "out")
    assert sys.modules[name].paid == []
    assert [record.cost.policy_calls for record in records] == [4, 4]  # three bits and the call to pay


def test_a_stand_in_lets_the_agent_go_on(folder):
    more = '\nfrom amc_agents import Deferred\namc_options = {"tools": {"pay": Deferred("queued")}}\n'
    name = write_agent(folder, more=more)
    own = load_own_agent(name)
    assert own.check() == []
    assert own.tools_for(own.make_agent(1.0))["pay"].result == "queued"


def test_a_failed_run_is_counted_and_run_again_on_resuming(folder):
    name = write_agent(folder)
    tasks = write_tasks(folder, 4)
    lines = tasks.read_text().splitlines()
    tasks.write_text("\n".join([*lines[:3], lines[3].replace('"ones"', '"trouble": "score", "ones"')]))
    plan = plan_of(folder, name, [react(), best_of_n()], critic=f"{name}:Share")
    records = run(plan, folder / "out")
    items = plan.comparison().items()
    failures = failed_runs(folder / "out", items, [record.key for record in records])
    assert [failure.key for failure in failures] == [("react", "t3", 0), ("best-of-n", "t3", 0)]
    assert all("no score for you" in failure.error for failure in failures)
    results = summarise(records, plan.methods, plan.comparison().settings, failures=failures)
    assert [(lost.method, lost.failed, lost.runs) for lost in results.failures] == [
        ("react", 1, 4),
        ("best-of-n", 1, 4),
    ]
    assert results.of("react").scores["oracle"].tasks == 3
    assert "| ReAct | 1 of 4 |" in markdown(results)
    assert "no score for you" in markdown(results)
    assert Results.load(results.save(folder / "results.json")) == results
    again = run(plan, folder / "out", resume=True)
    assert [record.key for record in again] == [record.key for record in records]
    assert len((folder / "out/failures.jsonl").read_text().splitlines()) == 4


def test_a_method_whose_runs_all_failed_stays_in_the_table(folder):
    name = write_agent(folder)
    write_tasks(folder, 2)
    plan = plan_of(folder, name, [react(), best_of_n()])
    records = [record for record in run(plan, folder / "out") if record.method == "react"]
    (folder / "out/failures.jsonl").write_text(
        "".join(f'{{"method": "best-of-n", "task": "t{n}", "seed": 0, "error": "E: x"}}\n' for n in range(2))
    )
    failures = failed_runs(folder / "out", plan.comparison().items(), [record.key for record in records])
    text = markdown(summarise(records, plan.methods, {}, failures=failures))
    assert "| Best-of-N | 2 of 2 | - |" in text
    assert "Best-of-N: 2 x E: x" in text
    assert causes_of(failure.error for failure in failures) == ["2 x E: x"]


def test_runs_that_all_fail_end_the_comparison_early(folder):
    name = write_agent(folder)
    write_tasks(folder, 20, trouble="score")
    with pytest.raises(AmcError, match=r"first 8 runs all failed.*no score for you"):
        run(plan_of(folder, name, [react()]), folder / "out", n_concurrent=1)


def test_results_of_another_agent_or_of_other_tasks_are_not_mixed(folder):
    name = write_agent(folder)
    tasks = write_tasks(folder, 2)
    plan = plan_of(folder, name, [react()])
    run(plan, folder / "out")
    tasks.write_text(tasks.read_text().replace('"ones": 2', '"ones": 1'))
    with pytest.raises(ConfigurationError, match="tasks_hash was"):
        run(plan, folder / "out", resume=True)


def test_the_job_of_a_loaded_agent_can_be_sent_to_a_process(folder):
    name = write_agent(folder)
    write_tasks(folder, 2)
    plan = plan_of(folder, name, [react()])
    assert plan.own  # loaded here: it must not be pickled
    job = pickle.loads(pickle.dumps(plan.job()))
    assert job.prepare().items() == plan.comparison().items()


@pytest.mark.thorough
def test_two_processes(folder):
    name = write_agent(folder)
    write_tasks(folder, 2)
    records = run(plan_of(folder, name, [react()]), folder / "out", n_workers=2)
    assert [record.task for record in records] == ["t0", "t1"]
    assert len(list((folder / "out").glob("records-*.jsonl"))) == 2


@pytest.mark.parametrize(
    ("more", "part"),
    [
        ("\nmake_agent = None\n", "make_agent is missing"),
        ("\ndel score\n", "no score and no make_environment"),
        ("\nscore = 3\n", "score is a int, expected a function"),
        ("\ndef score():\n    return 1\n", r"score cannot be called as score\(state\) or score\(state, task\)"),
        ("\ndef make_agent():\n    return 1\n", r"make_agent cannot be called as make_agent\(temperature\)"),
        ("\ndef make_agent(t):\n    return 1\n", "got int"),
        ("\ndef make_agent(t):\n    raise OSError('no key')\n", r"make_agent\(1\) failed \(OSError: no key\)"),
        ("\nhorizon = 0\n", "horizon is 0, expected a whole number above 0"),
        ("\namc_options = {'tool': {}}\n", "'tool'.*did you mean 'tools'"),
        ("\namc_options = 3\n", "amc_options is a int"),
        ("\n1 / 0\n", "ZeroDivisionError"),
        ("\n@tool\ndef say(bit: int):\n    'Say.'\n", "Declare their effects.*amc_options"),
    ],
)
def test_a_wrong_module_is_a_named_error(folder, more, part):
    name = write_agent(folder, more=more)
    with pytest.raises(AmcError, match=rf"(?s)(?=.*{name})(?=.*({part}))"):
        load_own_agent(name).check()


@pytest.mark.parametrize(
    ("name", "part"),
    [("nowhere", "cannot be imported"), ("agent.py", "not a file"), ("json:loadz", "did you mean 'load'")],
)
def test_a_wrong_name_is_a_named_error(name, part):
    with pytest.raises(ConfigurationError, match=part):
        load_own_agent(name)


def test_a_compiled_graph_keeps_its_temperature(folder):
    name = write_agent(folder, more="\ngraph = make_agent(0.3)\n")
    own = load_own_agent(f"{name}:graph")
    assert own.temperature_is_fixed
    assert own.make_agent(0.0) is own.make_agent(1.0) is sys.modules[name].graph
    assert "react-greedy" not in [method.name for method in OwnPlan(f"{name}:graph", folder).standard_methods()]


def test_the_settings_of_the_methods_suit_the_horizon_and_the_size_of_a_success(folder):
    name = write_agent(folder, more="\nhorizon = 10\nsuccess = 4.0\n")
    methods = {method.name: method for method in OwnPlan(name, folder).standard_methods()}
    assert methods["amc"].resample == AtSteps(3, 6)
    assert methods["amc"].beta == methods["best-of-n"].beta == pytest.approx(0.4)


def test_an_object_or_a_class_may_have_the_functions(folder):
    more = """
class Mine:
    temperature = 1
    def make_agent(self, temperature=0.4):
        return make_agent(temperature)
    def score(self, state):
        return 1.0
mine = Mine()
"""
    name = write_agent(folder, more=more)
    for named in ("Mine", "mine"):
        own = load_own_agent(f"{name}:{named}")
        assert own.check() == ["pay"]
        assert own.temperature == 0.4
        assert own.score is not None
        assert own.score({}, None) == 1.0


WORLD = """
from amc_agents import current_environment
from amc_agents.types import TimeStep

class World:
    def __init__(self, said=()):
        self.said = list(said)
    async def reset(self, task):
        return TimeStep.restart("go")
    async def step(self, action):
        self.said.append(int(action))
        return TimeStep.transition(f"said {action}", float(int(action)))
    async def fork(self, seed):
        return World(self.said)
    async def close(self):
        pass

class Bare:
    async def fork(self, seed):
        return Bare()
    async def close(self):
        pass

@tool
@effect("world")
async def say(bit: int) -> str:
    "Say."
    return (await current_environment().step(str(bit))).observation

del score
async def make_environment(task):
    return KIND()
"""


@pytest.mark.parametrize(("kind", "part"), [("Bare", "gives no rewards"), ("int", "returned int for task 't0'")])
def test_a_wrong_world_is_a_named_error(folder, kind, part):
    name = write_agent(folder, more=WORLD.replace("KIND", kind))
    write_tasks(folder, 1)
    with pytest.raises(ConfigurationError, match=part):
        run(plan_of(folder, name, [react()]), folder / "out")


def test_a_world_may_give_the_rewards(folder):
    name = write_agent(folder, more=WORLD.replace("KIND", "World"))
    write_tasks(folder, 3)
    records = run(plan_of(folder, name, [react(Tuned(temperature=1.0))]), folder / "out")
    assert all(0 <= record.scores.oracle <= 3 for record in records)
    assert any(record.scores.oracle for record in records)


def test_a_score_that_is_no_number_fails_the_run(folder):
    name = write_agent(folder, more="\ndef score(state):\n    return None\n")
    write_tasks(folder, 1)
    plan = plan_of(folder, name, [react()])
    assert run(plan, folder / "out") == []
    (failure,) = failed_runs(folder / "out", plan.comparison().items(), [])
    assert "score returned None" in failure.error


def test_runs_share_neither_a_memory_nor_an_agent(folder):
    more = """
from langgraph.checkpoint.memory import InMemorySaver

made = []
without_memory = make_agent


def make_agent(temperature=0.8):
    made.append(temperature)
    return without_memory(temperature).copy(update={"checkpointer": InMemorySaver()})
"""
    name = write_agent(folder, more=more)
    write_tasks(folder, 2)
    assert len(run(plan_of(folder, name, [react(Tuned(temperature=0.3))]), folder / "out")) == 2
    assert sys.modules[name].made == [0.3, 0.3]
