"""A value model is trained on the states in which a commit call is pending, in the text that it reads at run time."""

import json
import math

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from amc_agents import current_environment
from amc_agents.cli.commands import app
from amc_agents.critics.render import DIALOGUE, PLAIN, Encoder
from amc_agents.errors import ConfigurationError
from amc_agents.messages import called_tools, pending_states
from amc_agents.operations.importing import Outcomes, import_logs
from amc_agents.population.wrap import amc
from amc_agents.smc import AtSteps
from amc_agents.training.collecting import collect
from amc_agents.training.dataset import LoggedTrajectory, read_records, write_shard
from amc_agents.training.settings import Objective
from amc_agents.training.value.row_building import build_rows
from amc_agents.training.value.targets import state_keys
from amc_agents.types import Step, Task, TimeStep, Trajectory
from tests.population.commits.ledger import EFFECTS, Ledger, call, clerk, plain_loop, results, shop_tools

COMMITS = json.dumps({"commit_tools": ["refund"]})
PAY = json.dumps({"args": {"amount": 3}, "name": "refund"})


def encoder(prompt_format=PLAIN, max_tokens=None):
    return Encoder(prompt_format, lambda text: list(str(text).encode()), max_tokens, (300_000,))


def rows_of(tmp_path, records, prompt_format=PLAIN, objective=None, max_tokens=None):
    write_shard(tmp_path / "data", records)
    encode = encoder(prompt_format, max_tokens)
    return build_rows(tmp_path / "data", tmp_path / "rows", encode, objective, tokenizer="bytes")


def beside_a_look(messages):
    """Refund at once, with a call beside it that is complete while the refund waits."""
    if results(messages):
        return "done"
    calls = [call("look", "l", item=1), call("refund", "r", amount=7), call("refund", "q", amount=8)]
    return AIMessage("Both at once.", tool_calls=calls)


@pytest.mark.parametrize("respond", [clerk, beside_a_look])
@pytest.mark.parametrize("prompt_format", [PLAIN, DIALOGUE])
def test_the_trained_text_is_the_text_at_run_time(tmp_path, respond, prompt_format):
    prompts = set()

    def reading(trajectories):
        for trajectory in trajectories:
            prompts.add(tuple(token for segment in encoder(prompt_format).newest(trajectory) for token in segment))
        return [0.0] * len(trajectories)

    agent = plain_loop(respond, shop_tools(Ledger(tmp_path / "ledger")).values())
    graph = amc(agent, reading, tools=EFFECTS, n_particles=3, resample=AtSteps(20), seed=1)
    run = graph.run({"messages": [HumanMessage("Refund me.")]})
    weighed = len(prompts)
    rows = rows_of(tmp_path, [LoggedTrajectory(run.best, 0, settings=COMMITS)], prompt_format)
    trajectory, *pending = rows
    assert weighed
    assert len(pending) == 1
    assert pending[0].ids in prompts
    assert pending[0].ids not in {trajectory.ids[: mark + 1] for mark in trajectory.marks}


def bought(*rewards):
    steps = [Step("{}", "seen", "why", rewards[0]), Step(PAY, "paid", "pay", rewards[1], ("a", "t")), Step("bye")]
    return Trajectory(Task("t", "Refund me."), tuple(steps), done=True)


@pytest.mark.parametrize(("target", "expected"), [("future", 1.0), ("return", 1.25)])
def test_the_target_counts_what_the_call_will_earn(tmp_path, target, expected):
    records = [LoggedTrajectory(bought(0.25, 1.0), 0, settings=COMMITS)]
    whole, pending = rows_of(tmp_path, records, objective=Objective(target=target))
    assert pending.targets == (expected,)
    assert pending.states == (2,)
    assert pending.final == (False,)
    assert pending.marks == (len(pending.ids) - 1,)
    assert pending.success == whole.success
    assert len(whole.states) == 4


def test_pending_states_average_over_the_continuations_of_the_same_call(tmp_path):
    records = [LoggedTrajectory(bought(0.0, r), group, settings=COMMITS) for group, r in enumerate((0.0, 1.0))]
    rows = rows_of(tmp_path, records, objective=Objective(soft=True, beta=0.5))
    targets = [row.targets for row in rows if len(row.targets) == 1]
    mean = 0.5 * math.log((1 + math.exp(1 / 0.5)) / 2)
    assert targets == [(pytest.approx(mean),), (pytest.approx(mean),)]


def test_a_pending_call_at_the_end_of_a_long_trajectory_has_the_newest_window(tmp_path):
    steps = tuple(Step(f"act {number}", "seen " * 10) for number in range(8))
    trajectory = Trajectory(Task("t", "Refund me."), (*steps, Step(PAY, "paid", reward=1.0)), done=True)
    rows = rows_of(tmp_path, [LoggedTrajectory(trajectory, 0, settings=COMMITS)], max_tokens=400)
    state = next(pending_states(trajectory, ["refund"]))
    newest = [token for segment in encoder(max_tokens=400).newest(state) for token in segment]
    (pending,) = (row for row in rows if row.ids == tuple(newest))
    assert pending.states == (9,)
    assert len(newest) <= 400 < sum(map(len, encoder().newest(state)))


def test_a_dataset_without_commit_tools_has_a_row_for_each_trajectory(tmp_path):
    assert len(rows_of(tmp_path, [LoggedTrajectory(bought(0.0, 1.0), 0)])) == 1


def test_the_key_of_a_pending_state_is_that_of_the_unanswered_call():
    trajectory = bought(0.0, 1.0)
    (state,) = pending_states(trajectory, ("refund",))
    assert not state.done
    assert [step.observation for step in state.steps] == ["seen", ""]
    assert state.return_ == 0.0
    assert state.steps[-1].message_ids == ("a",)
    assert (state_keys(state)[-1] != state_keys(trajectory)[2]).any()


@pytest.mark.parametrize(
    ("action", "names"),
    [
        (PAY, ["refund"]),
        (f"[{PAY}, {PAY}]", ["refund", "refund"]),
        ("{not json", []),
        ("[1, 2]", []),
        ('{"other": 1}', []),
        ("refund 3", []),
    ],
)
def test_the_tools_of_an_action(action, names):
    assert called_tools(action) == names


# --- where the names of commit tools come from ---------------------------------------------------------------------


class Till:
    """A world of a till, which ends with the first refund."""

    paid: tuple[int, ...] = ()

    async def reset(self, task):
        return TimeStep.restart(task.instruction)

    async def step(self, action):
        self.paid += (int(action),)
        return TimeStep.termination("paid", float(int(action) > 500))

    async def fork(self, seed):
        return Till()

    async def close(self):
        pass


def shop_in_a_till(tmp_path):
    tools = shop_tools(Ledger(tmp_path / "ledger"))

    async def pay(amount: int) -> str:
        return (await current_environment().step(str(amount))).observation

    refund = tools["refund"].model_copy(update={"coroutine": pay})
    look = tools["look"].model_copy(update={"func": lambda item: f"item {item}", "coroutine": None})
    return plain_loop(clerk, [look, refund])


def collected(tmp_path, **options):
    return collect(shop_in_a_till(tmp_path), [Task("t/0", "Refund me.")], Till, 6, tmp_path / "data", **options)


def test_each_trajectory_of_a_collection_makes_its_own_call(tmp_path):
    collected(tmp_path, tools={"look": "read"}, commit_tools="refund", stateless_tools=True)
    records = read_records(tmp_path / "data")
    pending = [state.steps[-1].action for each in records for state in pending_states(each.trajectory, ["refund"])]
    assert {record.commit_tools for record in records} == {("refund",)}
    assert len(set(pending)) == len(pending) == 6
    assert json.loads(records[0].settings)["commit_tools"] == ["refund"]


def test_a_collection_of_one_commit_for_all_trajectories_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"give commit_tools=\['refund'\]"):
        collected(tmp_path, tools=EFFECTS)
    assert not (tmp_path / "data").exists()


@pytest.fixture
def log(tmp_path):
    tool_call = {"id": "c", "type": "function", "function": {"name": "refund", "arguments": '{"amount": 3}'}}
    messages = [
        {"role": "user", "content": "Refund me."},
        {"role": "assistant", "content": "", "tool_calls": [tool_call]},
        {"role": "tool", "tool_call_id": "c", "content": "paid"},
        {"role": "assistant", "content": "Done."},
    ]
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"thread_id": "one", "messages": messages}))
    return path


def test_an_import_stores_the_commit_tools_and_keeps_them_when_outcomes_arrive(tmp_path, log):
    report = import_logs(log, tmp_path / "data", commit_tools=["refund", "refund"])
    assert report.pending_commits == 1
    (tmp_path / "outcomes.csv").write_text("thread_id,value\none,1\n")
    import_logs(None, tmp_path / "data", outcomes=Outcomes(table=tmp_path / "outcomes.csv"))
    (record,) = read_records(tmp_path / "data")
    assert record.commit_tools == ("refund",)
    assert record.trajectory.return_ == 1.0
    again = import_logs(log, tmp_path / "data", commit_tools=["refund"])
    assert again.imported_before == 1


def test_a_name_that_no_call_has_is_noted(tmp_path, log):
    report = import_logs(log, tmp_path / "data", commit_tools=["refunds"])
    assert any("No new trajectory calls refunds" in note for note in report.notes())
    assert not any("calls" in note for note in import_logs(log, tmp_path / "other").notes())


def test_the_command_takes_commit_tools(tmp_path, log):
    from typer.testing import CliRunner

    arguments = ["import", str(log), "--out", str(tmp_path / "data"), "--commit-tools", "refund"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "pending calls of commit tools" in result.output
    assert read_records(tmp_path / "data")[0].commit_tools == ("refund",)
