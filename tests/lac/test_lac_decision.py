from __future__ import annotations

import asyncio
import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from amc_agents.critics.spec import UniformCritic
from amc_agents.critics.uses import Judgements, LogOdds
from amc_agents.decisions import Sample
from amc_agents.errors import ConfigurationError, CriticError, DecisionError, PromptTooLong
from amc_agents.lac.decision import decide, decide_among
from amc_agents.lac.imagination import ChatImagination, ChatReflector
from amc_agents.lac.types import LacSettings
from amc_agents.types import Step, Task, Trajectory
from tests.lac.lac_fakes import Flagging, Odds, Script, acts, virtual_seconds

STATE = Trajectory(Task("t", "Open the door."), (Step("look", "A door."),))
P = {"push": 0.2, "pull": 0.6, "wait": 0.9}
LOGIT = {action: math.log(p / (1 - p)) for action, p in P.items()}
MIXED = acts("push", "pull", "push", "wait", "push")


def probabilities(decision):
    return {one.action: one.probability for one in decision.candidates}


async def test_identical_actions_are_one_candidate_with_its_share_of_the_samples():
    decision = await decide(STATE, Script(MIXED), Odds(LOGIT), LacSettings(alpha=0))
    assert [(one.action, one.n) for one in decision.candidates] == [("push", 3), ("pull", 1), ("wait", 1)]
    assert np.exp([one.log_prior for one in decision.candidates]) == pytest.approx([0.6, 0.2, 0.2])
    assert probabilities(decision) == pytest.approx({"push": 0.6, "pull": 0.2, "wait": 0.2})
    assert (decision.prior, decision.sample.action, decision.sample.payload) == ("frequency", "push", 0)


async def test_k_duplicates_are_one_candidate_that_is_sure_and_judged_once():
    critic = Odds(LOGIT)
    decision = await decide(STATE, Script(acts(*["pull"] * 7)), critic, LacSettings(k=7))
    (only,) = decision.candidates
    assert (only.n, only.probability, only.log_prior, decision.chosen) == (7, 1.0, 0.0, 0)
    assert [len(seen) for seen in critic.seen] == [1]


@pytest.mark.parametrize("alpha", [0, 0.1, 0.5, 1, 2, 5, 10, math.inf])
async def test_with_known_success_probabilities_the_choice_is_the_best_of_prior_times_odds_to_the_alpha(alpha):
    for counts in itertools.product([1, 2, 5], repeat=3):
        names = [name for name, n in zip(P, counts, strict=True) for _ in range(n)]
        decision = await decide(STATE, Script(acts(*names)), Odds(LOGIT), LacSettings(k=len(names), alpha=alpha))
        prior = dict(zip(P, np.array(counts) / sum(counts), strict=True))
        if math.isinf(alpha):
            weights = {name: float(name == "wait") for name in P}
        else:
            weights = {name: prior[name] * (P[name] / (1 - P[name])) ** alpha for name in P}
        total = sum(weights.values())
        assert probabilities(decision) == pytest.approx({name: weights[name] / total for name in P}, rel=1e-9)
        best = max(weights.values())
        assert weights[decision.sample.action] == pytest.approx(best)
        assert decision.alpha == alpha


async def test_a_value_between_the_returns_of_failure_and_success_becomes_log_odds():
    class Values:
        predicts = "return"

        async def values(self, trajectories):
            return np.array([-1 + 2 * P[one.steps[-1].action] for one in trajectories])

    assert not isinstance(Values(), LogOdds)
    settings = LacSettings(returns=(-1.0, 1.0))
    decision = await decide(STATE, Script(MIXED), Values(), settings)
    assert {one.action: one.q for one in decision.candidates} == pytest.approx(LOGIT)


async def test_a_rollout_too_long_for_the_critic_is_judged_at_its_action():
    class Short(Odds):
        async def log_odds(self, trajectories):
            if any(len(step.observation) > 20 for one in trajectories for step in one.steps):
                raise PromptTooLong("the task and the newest round alone do not fit")
            return await super().log_odds(trajectories)

    class Wordy:
        async def imagine(self, trajectories):
            seen = {"push": "No.", "pull": "on and on " * 9, "wait": "Open."}
            return [
                replace(one, steps=(*one.steps[:-1], replace(one.steps[-1], observation=seen[one.steps[-1].action])))
                for one in trajectories
            ]

    critic = Short(LOGIT)
    decision = await decide(STATE, Script(MIXED), critic, LacSettings(depth=1), imagination=Wordy())
    assert [len(one.imagined) for one in decision.candidates] == [1, 0, 1]
    assert [one.q for one in decision.candidates] == pytest.approx([LOGIT[one] for one in ("push", "pull", "wait")])
    assert decision.notes == ("nothing could be imagined after 1 of 3 candidates",)
    # What really happened is never left out.
    real = replace(STATE, steps=(replace(STATE.steps[0], observation="a long, long answer of the world"),))
    with pytest.raises(PromptTooLong):
        await decide(real, Script(MIXED), critic, LacSettings(depth=1), imagination=Wordy())


@pytest.mark.parametrize("depth", [0, 1])
async def test_an_action_too_long_for_the_critic_gets_the_lowest_q(depth):
    endless = "push " * 9

    class Short(Odds):
        async def judgements(self, trajectories):
            q = await self.log_odds(trajectories)
            return Judgements(
                q, np.zeros(len(q), dtype=bool), p_good=np.exp(q) / (1 + np.exp(q)), p_bad=1 / (1 + np.exp(q))
            )

        async def log_odds(self, trajectories):
            if any(len(one.steps[-1].action) > 20 for one in trajectories):
                raise PromptTooLong("the task and the newest round alone do not fit")
            return await super().log_odds(trajectories)

    class Imagined:
        async def imagine(self, trajectories):
            return [
                replace(one, steps=(*one.steps[:-1], replace(one.steps[-1], observation="."))) for one in trajectories
            ]

    samples = acts(endless, endless, "pull", "push", "wait")
    settings = LacSettings(depth=depth, alpha=1.0)
    decision = await decide(STATE, Script(samples), Short(LOGIT), settings, imagination=Imagined())
    assert [one.action for one in decision.candidates] == [endless, "pull", "push", "wait"]
    expected = [P["push"], P["pull"], P["push"], P["wait"]]
    assert [one.p_good for one in decision.candidates] == pytest.approx(expected)
    assert [one.q for one in decision.candidates] == pytest.approx([math.log(p / (1 - p)) for p in expected])
    assert [one.flagged for one in decision.candidates] == [True, False, False, False]
    assert decision.sample.action == "wait"
    assert "the critic's answer is a bound or a stand-in for 1 of 4 candidates" in decision.notes
    with pytest.raises(PromptTooLong):
        await decide(STATE, Script(acts(endless)), Short(LOGIT), settings, imagination=Imagined())


async def test_a_critic_of_actions_judges_the_candidates_and_no_imagined_action():
    class Actions:
        async def q_values(self, trajectory, actions):
            assert trajectory == STATE
            return np.array([LOGIT[action] for action in actions])

    decision = await decide(STATE, Script(MIXED), Actions(), LacSettings())
    assert {one.action: one.q for one in decision.candidates} == pytest.approx(LOGIT)
    imagination = ChatImagination(Script(answers=imagined).answers)
    with pytest.raises(ConfigurationError, match="depth=0"):
        await decide(STATE, Script(MIXED), Actions(), LacSettings(depth=2), imagination=imagination)


async def test_ties_are_broken_by_the_prior_and_then_by_order():
    same = dict.fromkeys(P, 1.0)
    for alpha in (1.0, math.inf):
        decision = await decide(STATE, Script(MIXED), Odds(same), LacSettings(alpha=alpha))
        assert decision.sample.action == "push"
    equal = await decide(STATE, Script(acts("wait", "pull")), Odds(same), LacSettings(k=2))
    assert equal.sample.action == "wait"
    # 1/3 x odds 2 and 2/3 x odds 1 weigh the same: the larger prior has it.
    tied = await decide(
        STATE, Script(acts("pull", "push", "push")), Odds({"pull": math.log(2), "push": 0.0}), LacSettings(k=3)
    )
    assert tied.sample.action == "push"


async def test_if_every_judgement_is_flagged_the_prior_decides_with_a_note():
    decision = await decide(STATE, Script(MIXED), Flagging({}), LacSettings(alpha=10))
    assert decision.sample.action == "push"
    assert all(one.flagged and one.q == 0 for one in decision.candidates)
    assert "3 of 3 candidates" in decision.notes[0]


async def test_without_a_critic_it_is_a_vote_without_requests():
    settings = LacSettings(use_critic=False, depth=3, alpha=5)
    decision = await decide(STATE, Script(MIXED), None, settings)
    assert (decision.sample.action, decision.alpha, decision.round_trips) == ("push", 0.0, 1)


async def test_without_rollout_q_is_read_at_the_action():
    critic = Odds(LOGIT)
    actor = Script([Sample("it is stuck", "push"), Sample("", "pull")])
    decision = await decide(STATE, actor, critic, LacSettings(k=2))
    assert [one.steps[-1] for one in critic.seen[0]] == [Step("push", thought="it is stuck"), Step("pull")]
    assert [one.imagined for one in decision.candidates] == [(), ()]


async def test_a_forced_greedy_candidate_adds_one_pseudo_count():
    new = await decide(STATE, Script(MIXED, greedy=Sample("", "kick")), Odds({**LOGIT, "kick": 0.0}), settings_greedy())
    assert {one.action: math.exp(one.log_prior) for one in new.candidates} == pytest.approx(
        {"push": 3 / 6, "pull": 1 / 6, "wait": 1 / 6, "kick": 1 / 6}
    )
    assert [(one.n, one.greedy) for one in new.candidates] == [(3, False), (1, False), (1, False), (0, True)]
    known = await decide(STATE, Script(MIXED, greedy=Sample("", "pull")), Odds(LOGIT), settings_greedy())
    assert [math.exp(one.log_prior) for one in known.candidates] == pytest.approx([3 / 6, 2 / 6, 1 / 6])
    assert [(one.n, one.greedy) for one in known.candidates] == [(3, False), (1, True), (1, False)]


def settings_greedy(**more):
    return LacSettings(greedy=True, **more)


async def test_the_likelihood_prior_counts_each_text_once_and_adds_the_texts_of_an_action():
    def text(action, words, p):
        return Sample("", action, log_likelihood=math.log(p), text=words)

    samples = [
        text("push", "Action: push", 0.2),
        text("push", "Action: push", 0.2),
        text("push", "Action:  push", 0.1),
        text("pull", "Action: pull", 0.5),
    ]
    decision = await decide(STATE, Script(samples), Odds(LOGIT), LacSettings(k=4, alpha=0, prior="likelihood"))
    assert probabilities(decision) == pytest.approx({"push": 0.3 / 0.8, "pull": 0.5 / 0.8})
    assert decision.prior == "likelihood"
    assert decision.sample.action == "pull"


async def test_the_likelihood_prior_scores_texts_without_reported_likelihoods_and_refuses_thoughts():
    settings = LacSettings(k=2, alpha=0, prior="likelihood")
    table = {("", "push"): 0.1, ("", "pull"): 0.3}
    found = await decide(STATE, Script(acts("push", "pull")), Odds(LOGIT), settings, rescorer=Script(table=table))
    assert probabilities(found) == pytest.approx({"push": 0.25, "pull": 0.75})
    with pytest.raises(ConfigurationError, match="rescorer"):
        await decide(STATE, Script(acts("push", "pull")), Odds(LOGIT), settings)
    with pytest.raises(ConfigurationError, match="have thoughts"):
        await decide(STATE, Script([Sample("hm", "push"), Sample("", "pull")]), Odds(LOGIT), settings)


async def test_the_prior_over_thoughts_is_the_mean_over_all_that_were_sampled():
    table = {("a", "push"): 0.9, ("a", "pull"): 0.1, ("b", "push"): 0.0, ("b", "pull"): 0.6}
    samples = [Sample("a", "push"), Sample("a", "pull"), Sample("b", "pull")]
    rescorer = Script(table=table)
    settings = LacSettings(k=3, alpha=0, prior="thoughts")
    with np.errstate(divide="ignore"):
        decision = await decide(STATE, Script(samples), Odds(LOGIT), settings, rescorer=rescorer)
    push, pull = (0.9 + 0.9 + 0.0) / 3, (0.1 + 0.1 + 0.6) / 3
    assert probabilities(decision) == pytest.approx({"push": push / (push + pull), "pull": pull / (push + pull)})
    assert rescorer.asked == [("rescore", ("a", "b"), ("push", "pull"))]
    assert decision.prior == "thoughts"


async def test_a_greedy_thought_is_no_sample_of_the_prior():
    table = {("a", "push"): 0.5, ("a", "kick"): 0.25}
    actor = Script([Sample("a", "push")], greedy=Sample("g", "kick"))
    settings = LacSettings(k=1, alpha=0, prior="thoughts", greedy=True)
    decision = await decide(STATE, actor, Odds({"push": 0, "kick": 0}), settings, rescorer=Script(table=table))
    assert probabilities(decision) == pytest.approx({"push": 2 / 3, "kick": 1 / 3})


async def test_among_listed_actions_the_prior_is_exact_and_nothing_is_sampled():
    table = {("", action): p for action, p in [("push", 0.06), ("pull", 0.03), ("wait", 0.01)]}
    rescorer = Script(table=table)
    decision = await decide_among(STATE, ["push", "pull", "wait", "push"], rescorer, Odds(LOGIT), LacSettings())
    weights = {"push": 0.6 * 0.25, "pull": 0.3 * 1.5, "wait": 0.1 * 9}
    total = sum(weights.values())
    assert probabilities(decision) == pytest.approx({name: weight / total for name, weight in weights.items()})
    assert [math.exp(one.log_prior) for one in decision.candidates] == pytest.approx([0.6, 0.3, 0.1])
    assert (decision.prior, decision.sample.action, decision.round_trips) == ("list", "wait", 1)
    assert rescorer.asked == [("rescore", ("",), ("push", "pull", "wait"))]


def test_a_policy_that_thinks_has_the_mean_over_its_thoughts_as_the_exact_prior():
    table = {("a", "push"): 0.9, ("a", "pull"): 0.1, ("b", "push"): 0.3, ("b", "pull"): 0.7}
    samples = [Sample("a", "push", "first"), Sample("b", "push", "second"), Sample("a", "push", "third")]
    script = Script(samples, table=table, delay=1.0)
    decided = decide_among(STATE, ["pull", "push"], script, Odds(LOGIT), LacSettings(k=3, alpha=0), actor=script)
    decision, seconds = virtual_seconds(decided)
    assert [math.exp(one.log_prior) for one in decision.candidates] == pytest.approx([0.9 / 3, 2.1 / 3])
    assert [(one.action, one.thought, one.n) for one in decision.candidates] == [("pull", "a", 0), ("push", "a", 3)]
    assert (decision.prior, decision.sample.payload, decision.round_trips, seconds) == ("list", "first", 2, 2)
    assert script.asked[1:] == [("rescore", ("a", "b"), ("pull", "push"))]


@pytest.mark.thorough
async def test_drawn_actions_follow_the_improved_policy_and_the_seed():
    rng = np.random.default_rng(5)
    settings = LacSettings(sample=True)
    drawn = [(await decide(STATE, Script(MIXED), Odds(LOGIT), settings, rng=rng)).sample.action for _ in range(2000)]
    exact = probabilities(await decide(STATE, Script(MIXED), Odds(LOGIT), LacSettings()))
    for name, p in exact.items():
        assert drawn.count(name) / 2000 == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / 2000))
    again = np.random.default_rng(5)
    assert drawn[:20] == [
        (await decide(STATE, Script(MIXED), Odds(LOGIT), settings, rng=again)).sample.action for _ in range(20)
    ]
    with pytest.raises(ConfigurationError, match="rng"):
        await decide(STATE, Script(MIXED), Odds(LOGIT), settings)


async def test_unreadable_samples_are_dropped_with_a_note_and_an_empty_rest_is_an_error():
    decision = await decide(STATE, Script(acts("push", " ", "", "pull")), Odds(LOGIT), LacSettings(k=5, alpha=0))
    assert probabilities(decision) == pytest.approx({"push": 0.5, "pull": 0.5})
    assert decision.notes == (
        "5 samples were requested and 4 came",
        "2 of 4 samples name no action and were dropped",
    )
    with pytest.raises(DecisionError, match="none of 3 samples"):
        await decide(STATE, Script(acts("", "", "")), Odds(LOGIT), LacSettings(k=3))
    with pytest.raises(DecisionError, match="none of 0"):
        await decide(STATE, Script([]), Odds(LOGIT), LacSettings())
    saved = await decide(STATE, Script(acts(""), greedy=Sample("", "pull")), Odds(LOGIT), settings_greedy(k=1))
    assert saved.sample.action == "pull"


async def test_failures_are_raised_and_those_of_a_critic_may_be_tolerated():
    class Broken(Script):
        async def sample(self, k):
            raise RuntimeError("the provider is down")

    class BrokenCritic:
        async def log_odds(self, trajectories):
            raise CriticError("no answer")

    with pytest.raises(RuntimeError, match="provider is down"):
        await decide(STATE, Broken(), Odds(LOGIT), LacSettings())
    with pytest.raises(CriticError, match="no answer"):
        await decide(STATE, Script(MIXED), BrokenCritic(), LacSettings())
    decision = await decide(STATE, Script(MIXED), BrokenCritic(), LacSettings(on_critic_error="uniform"))
    assert decision.sample.action == "push"
    assert "no answer" in decision.notes[0]
    assert all(one.flagged for one in decision.candidates)


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (ConnectionError("refused"), "critic Answers failed: ConnectionError: refused"),
        (ValueError("bad"), "critic Answers failed: ValueError: bad"),
        (["n/a"] * 2, "answered list of str, expected"),
        ([0.5], "shape"),
        (np.array([[0.0] * 3]), "shape"),
        (np.array([math.nan, 0.0, 0.0]), "answered"),
        (None, "answered NoneType, expected"),
    ],
)
async def test_any_failure_of_a_critic_can_leave_the_decision_to_the_prior(answer, match):
    class Answers:
        async def log_odds(self, trajectories):
            if isinstance(answer, BaseException):
                raise answer
            return answer

    with pytest.raises(CriticError, match=match):
        await decide(STATE, Script(MIXED), Answers(), LacSettings())
    decision = await decide(STATE, Script(MIXED), Answers(), LacSettings(on_critic_error="uniform"))
    assert decision.sample.action == "push"
    assert "the prior decided alone" in decision.notes[0]


async def test_a_failing_forward_model_counts_as_a_critic_failure_but_a_wrong_setting_does_not():
    class Raises:
        def __init__(self, error):
            self.error = error

        async def imagine(self, taken):
            raise self.error

        async def log_odds(self, trajectories):
            raise self.error

    class Stuck:
        async def log_odds(self, trajectories):
            await asyncio.Event().wait()

    settings = LacSettings(depth=1, on_critic_error="uniform")
    imagination = Raises(OSError("gone"))
    decision = await decide(STATE, Script(MIXED), Odds(LOGIT), settings, imagination=imagination)
    assert "the forward model failed: OSError: gone" in decision.notes[0]
    with pytest.raises(ConfigurationError):
        await decide(
            STATE, Script(MIXED), Raises(ConfigurationError("another beta")), LacSettings(on_critic_error="uniform")
        )
    # A critic that cancels itself has failed; a decision that is cancelled ends.
    decision = await decide(
        STATE, Script(MIXED), Raises(asyncio.CancelledError()), LacSettings(on_critic_error="uniform")
    )
    assert "CancelledError" in decision.notes[0]
    deciding = asyncio.ensure_future(decide(STATE, Script(MIXED), Stuck(), LacSettings()))
    await asyncio.sleep(0.01)
    deciding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await deciding


def test_if_a_part_fails_the_others_are_cancelled():
    given_up = []

    class Slow:
        async def log_likelihoods(self, thoughts, actions):
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                given_up.append(True)
                raise

    class BrokenCritic:
        async def log_odds(self, trajectories):
            raise CriticError("no answer")

    async def failed():
        with pytest.raises(CriticError, match="no answer"):
            await decide(STATE, Script(MIXED), BrokenCritic(), LacSettings(prior="thoughts"), rescorer=Slow())

    _, seconds = virtual_seconds(failed())
    assert (seconds, given_up) == (0, [True])


@pytest.mark.parametrize("wrong", [np.zeros((1, 3)), np.full((2, 2), np.nan), np.full((2, 2), 0.5)])
async def test_a_malformed_answer_of_a_rescorer_is_an_error(wrong):
    class Nonsense:
        async def log_likelihoods(self, thoughts, actions):
            return wrong

    samples = [Sample("a", "push"), Sample("b", "pull")]
    with pytest.raises(CriticError, match="log-likelihoods"):
        await decide(STATE, Script(samples), Odds(LOGIT), LacSettings(k=2, prior="thoughts"), rescorer=Nonsense())


async def test_a_prior_that_allows_nothing_is_an_error():
    class Nothing:
        async def log_likelihoods(self, thoughts, actions):
            return np.full((len(thoughts), len(actions)), -np.inf)

    with pytest.raises(DecisionError, match="no candidate has any probability"):
        await decide_among(STATE, ["push", "pull"], Nothing(), Odds(LOGIT), LacSettings())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"k": 0}, "k must be"),
        ({"alpha": -1}, "alpha"),
        ({"alpha": math.nan}, "alpha"),
        ({"prior": "uniform"}, "prior"),
        ({"depth": 5}, "depth"),
        ({"returns": (1, 0)}, "returns"),
        ({"on_critic_error": "ignore"}, "on_critic_error"),
    ],
)
def test_invalid_settings_are_refused(wrong, said):
    with pytest.raises(ConfigurationError, match=said):
        LacSettings(**wrong)


async def test_missing_objects_that_the_settings_need_are_errors():
    for critic, settings in [(None, LacSettings()), (Odds(LOGIT), LacSettings(depth=1))]:
        with pytest.raises(ConfigurationError, match=r"critic|imagination"):
            await decide(STATE, Script(MIXED), critic, settings)
    with pytest.raises(ConfigurationError, match="rescorer"):
        await decide(STATE, Script(MIXED), Odds(LOGIT), LacSettings(prior="thoughts"))

    class Ungreedy:
        async def sample(self, k):
            return MIXED

    with pytest.raises(ConfigurationError, match="greedy"):
        await decide(STATE, Ungreedy(), Odds(LOGIT), settings_greedy())


async def test_a_decision_is_explained_in_json():
    settings = LacSettings(alpha=math.inf, greedy=True)
    decision = await decide(STATE, Script(MIXED, greedy=Sample("", "pull")), UniformCritic(), settings)
    plain = json.loads(json.dumps(decision.as_plain(), allow_nan=False))
    assert plain["action"] == "push"
    assert plain["alpha"] == "infinity"
    assert plain["candidates"][1] == {
        "thought": "",
        "action": "pull",
        "n": 1,
        "log_prior": pytest.approx(math.log(2 / 6)),
        "q": 0.0,
        "probability": pytest.approx(2 / 6),
        "imagined": [],
        "flagged": False,
        "greedy": True,
        "p_good": None,
        "p_bad": None,
        "mass": None,
    }


async def test_the_words_probabilities_are_kept_with_each_candidate():
    class Words(Odds):
        async def judgements(self, trajectories):
            good = np.array([{"push": 0.1, "pull": 0.3}[one.steps[-1].action] for one in trajectories])
            return Judgements(np.log(good / 0.2), np.zeros(len(good), dtype=bool), good, np.full(len(good), 0.2))

    decision = await decide(STATE, Script(acts("push", "pull")), Words({}), LacSettings(k=2))
    assert decision.sample.action == "pull"
    told = [(one["p_good"], one["p_bad"], one["mass"]) for one in decision.as_plain()["candidates"]]
    assert told == [(0.1, 0.2, pytest.approx(0.3)), (0.3, 0.2, pytest.approx(0.5))]


def imagined(prompt):
    return "Observation: it moves\nReflection: Fine. This step is UNKNOWN.\nAction: wait"


@pytest.mark.parametrize("prior", ["frequency", "thoughts"])
@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("depth", [0, 1, 4])
@pytest.mark.parametrize("reflect", [False, True])
def test_a_decision_takes_two_round_trips_and_one_per_imagined_step_and_one_to_reflect(prior, greedy, depth, reflect):
    delay = 100.0
    table = {("", action): 0.1 for action in P}
    script = Script(MIXED, Sample("", "pull"), table, imagined, delay)
    critic = Odds(LOGIT, delay)
    settings = LacSettings(prior=prior, greedy=greedy, depth=depth, reflect=reflect)

    async def decided():
        trajectory = await ChatReflector(script.answers).reflect(STATE) if reflect else STATE
        imagination = ChatImagination(script.answers, depth=depth, reflect=reflect) if depth else None
        return await decide(trajectory, script, critic, settings, imagination=imagination, rescorer=script)

    decision, seconds = virtual_seconds(decided())
    assert seconds == pytest.approx(delay * (2 + depth + reflect), rel=1e-6)
    assert decision.round_trips == 2 + depth
    assert [len(one.imagined) for one in decision.candidates] == [depth] * 3


def test_a_vote_takes_one_round_trip_and_its_scores_another():
    script = Script(MIXED, table={("", action): 0.1 for action in P}, delay=100.0)
    for prior, trips in (("frequency", 1), ("thoughts", 2)):
        settings = LacSettings(use_critic=False, prior=prior)
        decision, seconds = virtual_seconds(decide(STATE, script, None, settings, rescorer=script))
        assert (decision.round_trips, seconds) == (trips, pytest.approx(100.0 * trips, rel=1e-6))


def test_the_papers_method_imagines_and_reflects_and_the_defaults_do_not():
    paper = LacSettings.paper(alpha=5.0)
    assert (paper.depth, paper.reflect, paper.alpha) == (4, True, 5.0)
    assert replace(paper, depth=0, reflect=False, alpha=1.0) == LacSettings()
    assert LacSettings.paper(depth=2).depth == 2
    with pytest.raises(ConfigurationError, match="depth must be 0 to 4"):
        LacSettings.paper(depth=5)


async def test_the_papers_method_asks_the_forward_model_and_the_defaults_do_not():
    asked = []

    class Imagined:
        async def imagine(self, trajectories):
            asked.append(len(trajectories))
            return trajectories

    await decide(STATE, Script(MIXED), Odds(LOGIT), LacSettings.paper(), imagination=Imagined())
    assert asked == [3]
    await decide(STATE, Script(MIXED), Odds(LOGIT), LacSettings())
    assert asked == [3]
