from __future__ import annotations

import pytest

from amc_agents.bench.report import PairedDifference, Results
from amc_agents.bench.report_tables import deployment_lines, deployment_markdown, deployments


def with_gain(results: Results, difference: float, low: float, high: float) -> Results:
    def changed(pair: PairedDifference) -> PairedDifference:
        return pair.model_copy(update={"difference": difference, "low": low, "high": high})

    return results.model_copy(update={"comparisons": [changed(pair) for pair in results.comparisons]})


def test_only_picks_made_without_rewards_are_compared_with_both_plain_agents(results):
    assert [(one.method.name, one.plain.name) for one in deployments(results)] == [
        ("best-of-n", "react"), ("best-of-n", "react-greedy"), ("amc-hidden", "react"), ("amc-hidden", "react-greedy"),
    ]  # fmt: skip
    first = deployments(results)[0]
    scores = [method.scores["deployable"].mean for method in (first.method, first.plain)]
    assert first.gain.difference == pytest.approx(scores[0] - scores[1])


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [
        ((0.2, 0.1, 0.3), "better"),
        ((-0.2, -0.3, -0.1), "worse"),
        ((0.2, 0.0, 0.4), "not yet"),
        ((0.1, -0.1, 0.3), "not yet: needs some 16 tasks"),  # half the width is twice the gain: 4 x 4 tasks
        ((0.01, -0.4, 0.42), "not yet"),
        ((0.0, -0.1, 0.1), "not yet"),
    ],
)
def test_a_gain_is_decided_only_if_its_interval_excludes_zero(results, gain, verdict):
    assert {one.verdict for one in deployments(with_gain(results, *gain))} == {verdict}


def test_the_lines_say_what_it_costs(results):
    line = deployment_lines(with_gain(results, 0.2, 0.1, 0.3))[0]
    calls = [method.cost.policy_calls for method in (results.of("best-of-n"), results.of("react"))]
    assert line.startswith(f"Best-of-N: {results.of('best-of-n').scores['deployable'].mean:.3f} against ReAct: ")
    assert "gain +0.200 (+0.100 to +0.300), better; " in line
    assert f"{calls[0]:,.0f} (x {calls[0] / calls[1]:.1f}) model calls" in line
    assert "With fewer than 50 tasks" in deployment_lines(results)[-1]


def test_without_a_deployable_pick_the_room_for_a_critic_is_said(results):
    seen = results.model_copy(
        update={"methods": [method for method in results.methods if method.name in ("react", "smc")]}
    )
    (line,) = deployment_lines(seen)
    room = seen.of("smc").scores["oracle"].mean - seen.of("react").scores["oracle"].mean
    assert f"The oracle's pick of SMC, rewards only is {room:+.3f} above the ReAct" in line
    assert deployment_markdown(seen) == ""
