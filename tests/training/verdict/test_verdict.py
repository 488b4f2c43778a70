"""The verdict critic's labels, rows and training."""

import json
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from langchain_core.language_models import FakeListChatModel  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from amc_agents.critics.render import PromptFormat  # noqa: E402
from amc_agents.critics.verdict.checkpoint import DIALOGUE_STEP, STEP, VerdictCheckpoint, VerdictFormat  # noqa: E402
from amc_agents.envs.crafting import CraftingWorld, generate_task, plan  # noqa: E402
from amc_agents.errors import CheckpointError, ConfigurationError  # noqa: E402
from amc_agents.training.settings import VerdictTrainingSettings  # noqa: E402
from amc_agents.training.verdict import train_verdict as verdict  # noqa: E402
from amc_agents.training.verdict.labelling import (  # noqa: E402  # noqa: E402
    CraftingLabels,
    Judged,
    Option,
    OutcomeLabels,
    labelled,
    read_judged,
    sample_options,
    write_judged,
)
from amc_agents.training.verdict.passes import (  # noqa: E402
    branches,
    log_odds,
    predict,
)
from amc_agents.training.verdict.train_verdict import EMBEDDED, train_verdict  # noqa: E402
from amc_agents.types import Step, Task, Trajectory  # noqa: E402

ITEMS = ("clay", "silk", "flint", "bone", "coal", "kelp")


def judged_play(n_tasks: int, seed: int = 0) -> list[Judged]:
    """Some items are always GOOD to have: easy to learn, and the vote is no help."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(n_tasks):
        task = Task(f"toy/{number}", f"Crafting commands:\ncraft 1 oak gate using 2 {rng.choice(ITEMS)}\n\nGoal: x.")
        steps, options = [], []
        for _ in range(3):
            items = [*rng.permutation(ITEMS[:3])[:1], *rng.permutation(ITEMS[3:])[:2]]
            asked = [Step(f"get 2 {item}", thought="oak gate") for item in items]
            options.append(tuple(Option(step, n=int(rng.integers(1, 4))) for step in asked))
            steps.append(replace(asked[int(rng.integers(3))], observation=f"Got 2 {rng.choice(ITEMS)}"))
        found.append((Trajectory(task, tuple(steps), done=True), options))

    def wanted(trajectory):
        return ["GOOD" if step.action.split()[-1] in ITEMS[:3] else "BAD" for step in trajectory.steps]

    return labelled([one for one, _ in found], wanted, [options for _, options in found])


@pytest.fixture(scope="module")
def trained(base_model, tmp_path_factory):
    out = tmp_path_factory.mktemp("verdict") / "model"
    settings = replace(EMBEDDED, epochs=12, learning_rate=1e-2)
    return out, train_verdict(base_model, judged_play(80), out, settings)


def builder(tokenizer, max_tokens=512, **settings):
    return verdict._builder(tokenizer, replace(EMBEDDED, max_tokens=max_tokens, **settings), 512)


@pytest.mark.parametrize("max_tokens", [512, 64])
def test_one_pass_gives_the_verdicts_of_every_candidate(trained, max_tokens):
    out, _ = trained
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out).eval(), AutoTokenizer.from_pretrained(out)
    rows_of = builder(tokenizer, max_tokens)
    expected, found = [], []
    for one in judged_play(4, seed=9):
        asked = branches(one, observed=1.0)
        rows = rows_of.rows(one.trajectory, asked)
        assert sorted(asked.index(b) for row in rows for b in row.branches) == list(range(len(asked)))
        assert (len(rows) > 1) == (max_tokens < 512)
        for told in predict(model, rows, rows_of, 2):
            found += (told.log_p[:, 0] - told.log_p[:, 1]).tolist()
        for row in rows:
            assert max(row.positions) < max_tokens
            for number, branch in enumerate(row.branches, start=1):
                own = [i for i, of in enumerate(row.branch) if of == number]
                ids = (*row.ids[: row.until[own[0]]], *(row.ids[i] for i in own))
                if len(rows) == 1:
                    assert ids == rows_of.prompt(one.trajectory, branch)[1]
                last = torch.log_softmax(model(torch.tensor([ids])).logits[0, -1].detach(), dim=-1)
                good, bad = (rows_of.spellings[label][0] for label in ("GOOD", "BAD"))
                expected.append(float(last[good] - last[bad]))
    assert np.ptp(expected) > 1
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_words_of_several_tokens_are_learnt_completely(trained):
    out, _ = trained
    tokenizer = AutoTokenizer.from_pretrained(out)
    words = ("Crafted 2", "Could not find 1", "Inventory:")
    rows_of = builder(tokenizer, words=words)
    one = judged_play(1)[0]
    (row,) = rows_of.rows(one.trajectory, branches(one))
    for (places, word), branch in zip(row.verdicts, row.branches, strict=True):
        assert list(word) == tokenizer(words[0] if branch.label == "GOOD" else words[1])["input_ids"]
        assert [row.ids[place + 1] for place in places[:-1]] == list(word[:-1])


def test_training_learns_to_pick_and_measures_the_saved_model(trained):
    out, checkpoint = trained
    metrics = checkpoint.metrics
    assert metrics["auc"] > 0.95
    assert metrics["picks"]["critic"] > 0.9 > metrics["picks"]["vote"]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out).eval(), AutoTokenizer.from_pretrained(out)

    def tokenize(text):
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    loaded = VerdictCheckpoint.load(out)
    assert loaded.prompt_format == DIALOGUE_STEP
    assert {bool(one.segments[-2].endswith("<|end|>")) for one in loaded.golden} == {True, False}
    loaded.check_prompts(tokenize, "test")
    loaded.check_log_odds([log_odds(model, one.token_ids, loaded.words, tokenize) for one in loaded.golden], "test")
    with pytest.raises(CheckpointError, match="golden log-odds differ"):
        loaded.check_log_odds([0.0] * len(loaded.golden), "test")


def test_a_seed_fixes_the_result(base_model, tmp_path):
    judged = judged_play(4)

    def scores(seed, name):
        torch.manual_seed(len(name))  # torch's global state must not matter
        found = train_verdict(base_model, judged, tmp_path / name, replace(EMBEDDED, epochs=1, seed=seed))
        return [one.score for one in found.golden]

    assert scores(1, "a") == scores(1, "bb")
    assert scores(1, "c") != scores(2, "dd")


def test_the_folder_is_saved_atomically(base_model, tmp_path, monkeypatch):
    judged = judged_play(6)
    monkeypatch.setattr(verdict, "_golden", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train_verdict(base_model, judged, tmp_path / "new", replace(EMBEDDED, epochs=1))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "kept").touch()
    with pytest.raises(ConfigurationError, match="is not empty"):
        train_verdict(base_model, judged, tmp_path / "old", replace(EMBEDDED, epochs=1))


def test_what_cannot_be_learnt_is_refused(base_model, tmp_path):
    all_good = [replace(one, labels=("GOOD",) * 3, options=()) for one in judged_play(6)]
    with pytest.raises(ConfigurationError, match="both GOOD and BAD"):
        train_verdict(base_model, all_good, tmp_path / "new", EMBEDDED)
    with pytest.raises(ConfigurationError, match="each of 3 steps"):
        labelled([all_good[0].trajectory], lambda _: ["GOOD"])


def test_words_unknown_to_the_model_are_refused(base_model, tmp_path):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(base_model), AutoTokenizer.from_pretrained(base_model)
    table = model.get_output_embeddings().weight.data
    unseen, other = (tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in EMBEDDED.words[1:])
    table[other] = 1.5 * table[unseen]
    folder = tmp_path / "base"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with pytest.raises(ConfigurationError, match="same embedding as 1 others"):
        train_verdict(folder, judged_play(4), tmp_path / "new", EMBEDDED)


def test_progress_and_the_best_epoch(base_model, tmp_path):
    seen = []
    settings = replace(EMBEDDED, epochs=3, learning_rate=5e-2, batch_size=8)
    metrics = train_verdict(base_model, judged_play(20), tmp_path / "new", settings, progress=seen.append).metrics
    assert [one.step for one in seen] == list(range(1, 7))  # 16 trajectories in batches of 8, three times
    least = min(epoch["validation_loss"] for epoch in metrics["epochs"])
    assert metrics["loss"] == pytest.approx(least, rel=0.02)  # rounding to half precision


def test_an_action_without_observation_comes_last_and_prompts_stay_append_only():
    task, words = Task("t", "do it"), ("GOOD", "BAD")
    past = Trajectory(task, (Step("a", "o"),))
    asked = past.extended(Step("b", thought="so"))
    assert STEP.prompt(asked, words)[-2:] == ("\nThought: so\nAction: b\n", "This step is")
    done = past.extended(Step("b", "seen", thought="so"))
    assert DIALOGUE_STEP.prompt(done, words)[-2].startswith(DIALOGUE_STEP.prompt(asked, words)[-2])
    assert DIALOGUE_STEP.prompt(asked, words)[:-2] == DIALOGUE_STEP.prompt(done, words)[:-2]
    with pytest.raises(ConfigurationError, match="beginning of a complete round"):
        VerdictFormat(PromptFormat("x", "{instruction}", "{turn}>{observation}", "\n"), "?", pending="{turn}!")


async def test_the_crafting_labels_follow_the_planner():
    task = generate_task(3, "labels", optimal_steps=(5, 8))
    way = plan(task.payload.book, task.payload.goal)
    world = CraftingWorld()
    await world.reset(task)
    steps = [Step(action, (await world.step(action)).observation) for action in way]
    label = CraftingLabels()
    bare = replace(task, payload=None)  # as a dataset gives it back
    assert label(Trajectory(bare, tuple(steps), done=True)) == ["GOOD"] * len(way)
    raw = sorted(task.payload.book.raw)
    unused = next(name for name in raw if not any(f" {name}" in action for action in way))
    wrong = [Step(f"get 1 {unused}"), Step("inventory"), Step(way[-1]), Step("dance"), *steps]
    assert label(Trajectory(task, tuple(wrong)))[:5] == ["BAD", "BAD", "BAD", "BAD", "GOOD"]
    unknown = CraftingLabels(useless="UNKNOWN")(Trajectory(task, tuple(wrong)))
    assert unknown[:5] == ["UNKNOWN", "UNKNOWN", "BAD", "BAD", "GOOD"]
    with pytest.raises(ConfigurationError, match="expected an instruction"):
        label(Trajectory(Task("x", "open the door")))


def test_outcome_labels_are_cautious():
    steps = (Step("a", "no"), Step("a", "no"), Step("b", "yes"), Step("c", "yes", reward=1.0))
    task = Task("t", "x")
    assert OutcomeLabels(last=2)(Trajectory(task, steps, done=True)) == ["UNKNOWN", "BAD", "GOOD", "GOOD"]
    lost = Trajectory(task, (*steps[:3], replace(steps[3], reward=0.0)), done=True)
    assert OutcomeLabels(last=2)(lost) == ["UNKNOWN", "BAD", "UNKNOWN", "UNKNOWN"]


async def test_candidates_are_sampled_at_every_state():
    model = FakeListChatModel(responses=["Action: get 1 clay", "Thought: oh\nAction: get 2 clay", "Action: get 1 clay"])
    trajectory = Trajectory(Task("t", "Goal: x"), (Step("get 1 clay", "Got 1 clay"), Step("stop", "done")), done=True)
    ((first, second),) = await sample_options([trajectory], model, k=3, greedy=False)
    assert sorted((one.step.action, one.n, one.step.thought) for one in first) == [
        ("get 1 clay", 2, ""),
        ("get 2 clay", 1, "oh"),
    ]
    assert sum(one.n for one in second) == 3


def test_judged_trajectories_survive_a_round_trip(tmp_path):
    judged = judged_play(3)
    write_judged(tmp_path / "data" / "judged.jsonl", judged)
    assert read_judged(tmp_path / "data" / "judged.jsonl") == judged
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["judged.jsonl"]
    (tmp_path / "bad.jsonl").write_text(json.dumps({"task": {}}) + "\n")
    with pytest.raises(CheckpointError, match="not a file of judged trajectories"):
        read_judged(tmp_path / "bad.jsonl")


def test_the_defaults_are_the_papers():
    settings = VerdictTrainingSettings()
    assert (settings.learning_rate, settings.batch_size, settings.words) == (2.5e-5, 2, ("GOOD", "BAD", "UNKNOWN"))


@pytest.mark.thorough
def test_the_command_line_trains_on_what_it_collected(tmp_path):
    from typer.testing import CliRunner

    from amc_agents.cli.commands import app

    run, data = CliRunner().invoke, str(tmp_path / "data")
    collected = run(app, ["collect", "--out", data, "--tasks", "6", "--trajectories", "1", "--band", "3", "6"])
    assert collected.exit_code == 0, collected.output
    asked = ["train", "verdict", "--data", data, "--out", str(tmp_path / "new"), "--candidates", "2", "--epochs", "1"]
    asked += ["--json"]
    trained = run(app, asked)
    assert trained.exit_code == 0, trained.output
    assert "states whose candidates differ" in trained.stderr
    assert json.loads(trained.stdout)["metrics"]["epochs"]
    assert VerdictCheckpoint.load(tmp_path / "new").words == ("Crafted", "Could not find")
    refused = run(app, [*asked, "--labels", "nowhere:nothing"])
    assert isinstance(refused.exception, ConfigurationError)
