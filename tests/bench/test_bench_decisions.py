from __future__ import annotations

import contextlib
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from amc_agents.bench.decision_report import agreement, choices, markdown, over_time
from amc_agents.bench.methods import Tuned, chosen, lac, lac_variants, react, react_greedy, vote
from amc_agents.bench.planner_critic import PlannerCritic
from amc_agents.bench.report import Results, summarise
from amc_agents.bench.report_tables import main_differences
from amc_agents.bench.report_tables import markdown as report_markdown
from amc_agents.bench.results_folder import clear, worker_file
from amc_agents.bench.run_files import RunDecisions, read_decisions
from amc_agents.bench.runner import compare, run_one
from amc_agents.cli import main
from amc_agents.cli.comparison import difference_table
from amc_agents.critics.spec import parse_critic
from amc_agents.envs.crafting import CraftingWorld, generate_task
from amc_agents.envs.crafting.tasks import plan
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.types import Step, Trajectory

PLANNER = "amc_agents.bench.planner_critic:PlannerCritic"
LIKES_ONES = "tests.bench.coins:LikesOnes"
METHODS = [react(), react_greedy(), vote(), lac(critic=LIKES_ONES)]


def made(*candidates, chosen=0, alpha=1.0):
    """A decision: candidates as (prior, Q, probability), or with p(GOOD) and p(BAD) after them."""
    rows = [
        {"log_prior": math.log(prior) if prior else None, "q": q, "probability": probability}
        | dict(zip(("p_good", "p_bad"), words or (None, None), strict=True))
        for prior, q, probability, *words in candidates
    ]
    return {"candidates": rows, "chosen": chosen, "alpha": alpha}


def played(decisions, *, success=True, task="a", seed=0):
    return RunDecisions("lac", task, seed, success, tuple(decisions))


@pytest.mark.thorough
async def test_methods_that_decide_run_like_all_others(make_comparison, tmp_path):
    comparison = make_comparison(n_tasks=3, methods=METHODS, seeds=(0, 1))
    records = await compare(comparison, tmp_path, keep_decisions=True)
    by_method = {name: [one for one in records if one.method == name] for name in ("react", "vote", "lac")}
    # Five coins: a 1 is among them in 31 of 32 decisions, and this critic knows that it is good.
    assert np.mean([one.scores.deployable for one in by_method["lac"]]) > 0.7
    lac_cost, vote_cost = by_method["lac"][0].cost, by_method["vote"][0].cost
    assert lac_cost.steps == vote_cost.steps == 4
    assert lac_cost.policy_calls == vote_cost.policy_calls == 20  # K one by one: this model does not take n
    assert by_method["react"][0].cost.policy_calls == 4
    again = await compare(comparison, tmp_path, resume=True, keep_decisions=True)
    assert again == records
    kept = read_decisions(tmp_path)
    assert {one.key for one in kept} == {one.key for one in records if one.method in ("vote", "lac")}
    assert all(len(one.decisions) == 4 for one in kept)
    assert {one.key: one.success for one in kept if one.success} == {
        one.key: True for one in records if one.method in ("vote", "lac") and one.scores.success
    }
    chose = {candidate["action"] for one in kept for step in one.decisions for candidate in step["candidates"]}
    assert chose == {"0", "1"}
    clear(tmp_path)
    assert list(tmp_path.iterdir()) == []


async def test_decisions_are_kept_only_on_request(make_comparison, tmp_path):
    await compare(make_comparison(1, METHODS), tmp_path)
    assert read_decisions(tmp_path) == []


async def test_a_decision_is_part_of_the_settings(make_comparison, tmp_path):
    await compare(make_comparison(1, [vote(), lac(critic=LIKES_ONES)]), tmp_path)
    kept = json.loads((tmp_path / "settings.json").read_text())["methods"]["lac"]
    assert (kept["critic"], kept["decision"]["alpha"], kept["decision"]["k"]) == (LIKES_ONES, 1.0, 5)
    with pytest.raises(ConfigurationError, match=r"lac: decision was .*'alpha': 1\.0.* is .*'alpha': 'infinity'"):
        await compare(make_comparison(1, [lac(critic=LIKES_ONES, alpha=math.inf)]), tmp_path, resume=True)


async def test_the_scorer_of_the_comparison_is_used(make_comparison):
    class Scores:
        async def log_likelihoods(self, messages, texts, temperature):
            return np.log(np.full(len(texts), 0.5))

    records = []
    comparison = make_comparison(1, [lac(critic=LIKES_ONES, prior="thoughts")], scorer=Scores)
    await run_one(comparison, 0, comparison.tasks[0], comparison.methods[0], sink=records.append)
    assert {record["prior"] for record in records} == {"thoughts"}


async def test_only_an_oracle_receives_the_task(make_comparison):
    class Curious:
        def __init__(self):
            self.tasks = set()

        async def log_odds(self, trajectories):
            self.tasks |= {one.task.id for one in trajectories}
            return np.zeros(len(trajectories))

        async def values(self, trajectories):
            return np.zeros(len(trajectories))

    for oracle in (True, False):
        critic = Curious()
        comparison = make_comparison(2, [replace(lac(), oracle=oracle)], critic=critic)
        for task in comparison.tasks:
            await run_one(comparison, 0, task, comparison.methods[0])
        assert critic.tasks == ({"bits/0", "bits/1"} if oracle else {""})


@pytest.mark.thorough
async def test_lac_is_compared_with_the_better_of_vote_and_greedy(make_comparison, tmp_path):
    oracle = [one for one in lac_variants(Tuned(), oracle=LIKES_ONES) if one.name == "lac-oracle"]
    comparison = make_comparison(4, [*METHODS, *oracle])
    results = summarise(await compare(comparison, tmp_path), comparison.methods, comparison.settings)
    # Greedy coins always say 1: nothing is better.
    assert {(one.a, one.b, one.metric) for one in main_differences(results)} == {
        ("lac", "react", "deployable"), ("lac", "react-greedy", "deployable"),
        ("lac-oracle", "react", "oracle"), ("lac-oracle", "react-greedy", "oracle"),
    }  # fmt: skip
    assert "deployable" not in results.of("lac-oracle").scores
    assert "ReAct, greedy: the best here" in str(difference_table(results).caption)
    text = report_markdown(results)
    assert "ORACLE: judged by a critic that knows the world" in text
    assert "top 5" not in text
    assert "imagined" not in text
    assert Results.load(results.save(tmp_path / "results.json")) == results


def test_methods_that_decide_are_chosen_by_name_or_group():
    known = [react(), react_greedy(), vote(), vote(greedy=True), *lac_variants(Tuned(), critic="uniform")]
    names = [one.name for one in chosen(known, ["decisions"])]
    assert names == ["react", "react-greedy", "vote", "vote-greedy", "lac", "lac-greedy", "critic-only"]
    alphas = chosen(known, ["alphas"])
    assert [one.decision.alpha for one in alphas] == [0.5, 1, 2, 5, 10]
    assert not any("oracle" in one.name for one in known)
    with pytest.raises(ConfigurationError, match="decisions = react, react-greedy, vote"):
        chosen(known, ["lak"])


def test_correlation_with_time_is_taken_within_each_run():
    def run(qs, **told):
        return played([made((1.0, q, 1.0)) for q in qs], **told)

    rising, falling = run([-2.0, 0.0, 2.0, 4.0]), run([3.0, 1.0, -1.0], success=False, task="b")
    mixed = run([0.0, 1.0, 0.0], task="c")  # no trend
    short, flat = run([0.0, 9.0], task="d"), run([1.0, 1.0, 1.0], task="e")
    won = over_time([rising, falling, mixed, short, flat], success=True)
    assert won.correlations["Q"].mean == pytest.approx(0.5)
    assert (won.correlations["Q"].tasks, won.runs, won.decisions) == (2, 3, 10)
    p = 1 / (1 + np.exp(-np.array([-2.0, 0.0, 2.0, 4.0])))
    assert won.correlations["p = sigmoid(Q)"].mean == pytest.approx(np.corrcoef(range(4), p)[0, 1] / 2)
    assert over_time([rising, falling], success=False).correlations["Q"].mean == pytest.approx(-1.0)
    assert over_time([short], success=True).correlations["Q"] is None


def test_the_words_probabilities_have_correlations_of_their_own():
    # The words lose their mass: both fall, and Q rises.
    words = ((0.3, 0.2), (0.1, 0.02), (0.01, 1e-170))
    run = played([made((1.0, math.log(good / bad), 1.0, good, bad)) for good, bad in words])
    found = over_time([run], success=True).correlations
    assert found["Q"].mean > 0
    expected = np.corrcoef(range(3), [0.3, 0.1, 0.01])[0, 1], np.corrcoef(range(3), [0.2, 0.02, 0.0])[0, 1]
    assert (found["p(GOOD)"].mean, found["p(BAD)"].mean) == pytest.approx(expected)


def test_agreement_of_prior_and_critic():
    both = made((0.8, 2.0, 0.95), (0.2, 0.0, 0.05))
    prior_alone = made((0.8, 0.0, 0.6), (0.2, 1.0, 0.4))
    q_alone = made((0.6, -1.0, 0.1), (0.4, 2.0, 0.9), chosen=1)
    neither = made((0.4, -3.0, 0.1), (0.35, 1.0, 0.6), (0.25, 1.2, 0.3), chosen=1)
    alone = made((1.0, 5.0, 1.0))
    found = agreement([played([both, both, prior_alone, q_alone, neither, alone])])
    assert (found.decisions, found.of, found.ranked) == (5, 6, 5)
    assert found.same_favourite[:3] == (pytest.approx(2 / 5), None, 1)
    two = agreement([played([both, both]), played([both, neither, alone], task="b"), played([alone], task="c")])
    assert two.same_favourite[:3] == (pytest.approx(3 / 4), pytest.approx(1 / 4), 2)
    assert {name: case.share for name, case in found.cases.items()} == {
        "both": 0.4, "prior alone": 0.2, "Q alone": 0.2, "neither": 0.2,
    }  # fmt: skip
    assert found.cases["Q alone"][1:] == pytest.approx((0.2, 3.0, 0.8))
    assert found.rank_correlation == pytest.approx((1 + 1 - 1 - 1 - 1) / 5)
    tied = agreement([played([made((0.5, 1.0, 0.7), (0.5, 0.0, 0.3))])])
    assert (tied.same_favourite.mean, tied.rank_correlation) == (1.0, None)
    assert agreement([played([alone])]).same_favourite is None


def test_what_other_weights_would_choose():
    # 0.8 against 0.2: Q has to be log 4 = 1.39 larger to win.
    close, far = (made((0.8, 0.0, 0.5), (0.2, q, 0.5)) for q in (1.0, 4.0))
    never = made((1.0, 0.0, 1.0), (0.0, 9.0, 0.0))
    by_alpha = {one.alpha: one for one in choices([played([close, far, never])], (0.1, 1.0, 2.0))}
    assert [by_alpha[alpha].as_prior for alpha in (0.1, 1.0, 2.0)] == pytest.approx([1, 2 / 3, 1 / 3])
    assert [by_alpha[alpha].as_q for alpha in (0.1, 1.0, 2.0)] == pytest.approx([1 / 3, 2 / 3, 1])
    assert by_alpha[2.0].as_made == pytest.approx(1 / 3)
    assert choices([played([made((1.0, 0.0, 1.0))])]) == []


def test_only_methods_with_a_critic_are_reported():
    asked = played([made((0.8, q, 0.9), (0.2, 0.0, 0.1)) for q in (1.0, 2.0, 3.0)])
    voted = replace(asked, method="vote", decisions=tuple(one | {"alpha": 0} for one in asked.decisions))
    infinite = replace(asked, method="only", decisions=tuple(one | {"alpha": "infinity"} for one in asked.decisions))
    text = markdown([asked, voted, infinite], {"vote": "vote", "lac": "LAC", "only": "critic alone"})
    assert [line for line in text.splitlines() if line.startswith("##")] == ["## LAC", "## critic alone"]
    assert "| Q of the chosen action | +1.00 (n = 1) | - |" in text
    assert "In 66.7% of them (mean over 1 tasks)" in markdown(
        [replace(asked, decisions=(*asked.decisions[:2], made((0.2, 1.0, 0.9), (0.8, 0.0, 0.1))))], {"lac": "LAC"}
    )
    assert markdown([voted], {"vote": "vote"}) == ""


def test_a_line_cut_short_is_dropped_and_a_broken_one_is_an_error(tmp_path):
    one = played([made((1.0, 1.0, 1.0))])
    file = tmp_path / "decisions-0-of-2.jsonl"
    with worker_file(tmp_path, "decisions", "0-of-2") as kept:
        kept.append(one.to_json())
        kept.append(replace(one, task="b").to_json())
    file.write_bytes(file.read_bytes()[:-9])
    assert read_decisions(tmp_path) == [one]
    with worker_file(tmp_path, "decisions", "0-of-2") as kept:
        kept.append(replace(one, task="c").to_json())
        kept.append(replace(one, success=False).to_json())  # played again
    assert [(each.task, each.success) for each in read_decisions(tmp_path)] == [("a", False), ("c", True)]
    file.write_text("{}\n" + file.read_text())
    with pytest.raises(CheckpointError, match="line 1"):
        read_decisions(tmp_path)


async def test_the_oracle_knows_which_step_is_wasted():
    task = generate_task(7, "train", optimal_steps=(4, 6))
    world, oracle = CraftingWorld(), parse_critic("amc_agents.bench.planner_critic:PlannerCritic")
    actions = plan(task.payload.book, task.payload.goal)
    await world.reset(task)
    way = Trajectory(task)
    states = []
    for action in actions:
        way = way.extended(Step(action))
        states.append(way)
    assert isinstance(oracle, PlannerCritic)
    assert (await oracle.log_odds(states)).tolist() == [0.0] * len(actions)
    useless = [state.prefix(1).extended(Step("inventory")) for state in states[:1]]
    twice = useless[0].extended(Step("dance"))
    assert (await PlannerCritic().log_odds([*useless, twice])).tolist() == [-5.0, -10.0]


@pytest.mark.thorough
def test_the_command_line_runs_them_and_reports(tmp_path, monkeypatch, capsys):
    def bench(*arguments):
        given = ["bench", "--tasks", "2", "--band", "3", "4", "--critic", "uniform", "--workers", "1", *arguments]
        monkeypatch.setattr("sys.argv", ["amc", *given, "--out", str(tmp_path)])
        with contextlib.suppress(SystemExit):
            main()
        return capsys.readouterr().out

    told = bench("--methods", "react,vote,lac", "--candidates", "3", "--keep-decisions", "--decision-critic", PLANNER)
    assert "LAC - ReAct" in told
    results = Results.load(tmp_path / "results.json")
    assert results.of("lac").settings["critic"] == PLANNER
    assert results.of("vote").settings["decision"]["k"] == 3
    assert "## LAC" in (tmp_path / "decisions.md").read_text()
    assert len(read_decisions(tmp_path)) == 4
