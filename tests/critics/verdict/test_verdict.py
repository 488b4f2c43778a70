"""Verdicts against a real (tiny, random) model: an HTTP server's answers are computed from its logits."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import httpx
import numpy as np
import pytest

from amc_agents.critics.render import PromptFormat
from amc_agents.critics.saved import Golden
from amc_agents.critics.server.client import ModelServer
from amc_agents.critics.spec import parse_critic
from amc_agents.critics.verdict.checkpoint import STEPWISE, VerdictCheckpoint, VerdictFormat
from amc_agents.critics.verdict.critic import VerdictCritic
from amc_agents.critics.verdict.reading import CompletionsReader, Spellings, Verdicts
from amc_agents.critics.verdict.top_k import TopKReader
from amc_agents.errors import CheckpointError, ConfigurationError, CriticError, CriticServerError, CriticSpecError
from amc_agents.testing import check_critic
from amc_agents.types import Step, Task, Trajectory
from amc_agents.usage import Meter, Usage, metering

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

SHORT = VerdictFormat(PromptFormat("short", "{instruction}", "{turn}>{observation}", "\n"), "{good} or {bad}?")


def trajectory(steps: int, name: str = "t") -> Trajectory:
    return Trajectory(Task("1", f"do {name}"), tuple(Step(f"a{i}", f"o{i}", thought="so") for i in range(steps)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A byte-level tokenizer whose words fall into one, two and three tokens."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: number for number, piece in enumerate([*alphabet, "GO", "OD", "BA", "BAD"])}
    merges = [("G", "O"), ("O", "D"), ("B", "A"), ("BA", "D")]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    folder = tmp_path_factory.mktemp("model")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def tokenize(folder):
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    shape = transformers.LlamaConfig(
        vocab_size=260, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        initializer_range=0.3, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(shape).eval()


def log_softmax(model, ids) -> np.ndarray:
    """`[tokens, vocabulary]` log-probabilities of what follows each token."""
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([list(ids)])).logits[0].double(), dim=-1).numpy()


def by_hand(model, tokenize, texts, words) -> list[float]:
    """Log-probability of each word after a prompt: whole spellings in one pass each, as a reference."""
    prompt = [token for text in texts for token in tokenize(text)]
    log_probabilities = []
    for word in words:
        paths = []
        for text in (word, f" {word}"):
            ids = tokenize(text)
            table = log_softmax(model, prompt + ids)
            paths.append(sum(table[len(prompt) + place - 1, token] for place, token in enumerate(ids)))
        log_probabilities.append(float(np.logaddexp(*paths)))
    return log_probabilities


class Served:
    """A vLLM-like server of a model, as a transport of httpx; `change` alters an answer before it is sent."""

    def __init__(self, model, folder, *, limit=500, change=None, names=("tiny",)):
        self.model, self.folder, self.limit, self.change, self.names = model, folder, limit, change, names
        self.requests: list[dict] = []
        self.failing = 0

    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self.answer)

    def answer(self, request: httpx.Request) -> httpx.Response:
        if self.failing:
            self.failing -= 1
            raise httpx.ReadError("gone", request=request)
        if request.url.path == "/v1/models":
            models = [{"id": name, "root": str(self.folder), "max_model_len": self.limit} for name in self.names]
            return httpx.Response(200, json={"data": models})
        body = json.loads(request.content)
        self.requests.append(body)
        answer = self.completions(body)
        if self.change:
            answer = self.change(answer)
        return httpx.Response(200, content=json.dumps(answer))

    def completions(self, body: dict) -> dict:
        assert body["max_tokens"] == 1
        assert max(map(len, body["prompt"])) < self.limit
        choices = []
        for index, row in enumerate(body["prompt"]):
            table = log_softmax(self.model, row)[-1]
            ids = [int(table.argmax()), *body.get("logprob_token_ids", [])]
            top = {f"token_id:{token}": float(table[token]) for token in ids}
            choices.append({"index": index, "text": "", "logprobs": {"top_logprobs": [top]}})
        tokens = sum(map(len, body["prompt"]))
        # Servers may answer in any order.
        return {"choices": choices[::-1], "usage": {"prompt_tokens": tokens, "completion_tokens": len(choices)}}

    def reader(self, **settings) -> CompletionsReader:
        return CompletionsReader(ModelServer("http://tiny", transport=self.transport(), retry_for=5), **settings)

    def critic(self, **settings) -> VerdictCritic:
        return VerdictCritic(self.reader(), **{"prompt_format": SHORT, "least_mass": 0.0, **settings})


@pytest.fixture
def served(model, folder) -> Served:
    return Served(model, folder)


def test_spellings_are_those_of_the_tokenizer(tokenize):
    spellings = Spellings.of(("GOOD", "BAD"), tokenize)
    go, od, space, bad = (tokenize(text) for text in ("GO", "OD", " ", "BAD"))
    assert spellings.good == (tuple(go + od), tuple(space + go + od))
    assert spellings.bad == (tuple(bad), tuple(space + bad))
    assert set(spellings.prefixes) == {(), tuple(go), tuple(space), tuple(space + go)}
    assert spellings.prefixes[0] == ()


def test_a_word_is_tokenized_as_a_continuation():
    # Some tokenizers prepend a space to every text.
    def prefixed(text):
        return [ord(character) for character in " " + text]

    assert Spellings.of(("A", "B"), prefixed).good == ((65,), (32, 65))


def test_words_that_cannot_be_read_are_refused(tokenize):
    def known(text):
        return [{"G": 1, "\n": 2, " ": 3}.get(character, 0) for character in text]

    with pytest.raises(ConfigurationError, match="no tokens for the verdict word 'B'"):
        Spellings.of(("G", "B"), known)
    with pytest.raises(ConfigurationError, match=r"tokens .* begin with one another"):
        Spellings.of(("BAD", "BADGE"), tokenize)


@pytest.mark.parametrize("words", [("GOOD", "BAD"), ("yes, it will", "no")])
async def test_log_odds_are_those_of_the_model(served, model, tokenize, words):
    trajectories = [trajectory(0), trajectory(2), trajectory(1, "other"), trajectory(2)]
    verdicts = await served.critic(words=words).verdicts(trajectories)
    prompts = [SHORT.prompt(state, words) for state in trajectories]
    expected = np.array([by_hand(model, tokenize, prompt, words) for prompt in prompts])
    assert verdicts.log_good == pytest.approx(expected[:, 0], abs=1e-5)
    assert verdicts.log_bad == pytest.approx(expected[:, 1], abs=1e-5)
    assert verdicts.log_odds == pytest.approx(expected[:, 0] - expected[:, 1], abs=1e-5)
    assert np.ptp(verdicts.log_odds) > 0.1
    assert verdicts.mass == pytest.approx(np.exp(expected).sum(1), rel=1e-5)
    assert not verdicts.flagged.any()


async def test_an_action_is_judged_as_a_step_without_an_observation(served, model, tokenize):
    past, actions, words = trajectory(1), ["left", "right"], ("GOOD", "BAD")
    q = await served.critic().q_values(past, actions)
    texts = [SHORT.prompt(past.extended(Step(action)), words) for action in actions]
    assert texts[1][-2].endswith("right>\n")
    expected = [np.subtract(*by_hand(model, tokenize, text, words)) for text in texts]
    assert q == pytest.approx(expected, abs=1e-5)


async def test_p_good_leaves_out_the_other_word(served, model, tokenize):
    past, words = trajectory(1), ("GOOD", "BAD")
    # Even with too little mass, because 0 would be certain success.
    critic = served.critic(score="p_good", least_mass=0.99, returns=(-2.0, 8.0))
    good, _ = by_hand(model, tokenize, SHORT.prompt(past.extended(Step("left")), words), words)
    assert await critic.q_values(past, ["left"]) == pytest.approx([good], abs=1e-5)
    assert await critic.log_odds([past.extended(Step("left"))]) == pytest.approx([good], abs=1e-5)
    good, _ = by_hand(model, tokenize, SHORT.prompt(past, words), words)
    assert await critic.values([past]) == pytest.approx([-2 + 10 * math.exp(good)], abs=1e-5)
    assert (await critic.verdicts([past])).flagged.tolist() == [True]


async def test_it_passes_the_checks_of_critics(served):
    await check_critic(served.critic(), [trajectory(n) for n in range(3)])


class Fixed:
    """A reader that gives the same log-probabilities to every prompt."""

    name = "fixed"

    def __init__(self, good, bad):
        self.good, self.bad, self.usage = good, bad, Usage()

    async def prepare(self):
        return None

    async def read(self, prompts, words):
        n = len(prompts)
        return Verdicts(np.full(n, self.good), np.full(n, self.bad), np.zeros(n, dtype=bool))


async def test_little_mass_is_no_verdict():
    for p_good, q, flagged in ((0.045, 0.0, True), (0.06, math.log(60), False)):
        critic = VerdictCritic(Fixed(math.log(p_good), math.log(0.001)))
        assert await critic.log_odds([trajectory(1)]) == pytest.approx([q])
        assert await critic.q_values(trajectory(0), ["left", "right"]) == pytest.approx([q, q])
        judgements = await critic.judgements([trajectory(1)])
        assert judgements.flagged.tolist() == [flagged]
        assert (judgements.q, judgements.p_good, judgements.p_bad) == pytest.approx((q, p_good, 0.001))


async def test_a_value_is_the_expected_return_between_failure_and_success():
    critic = VerdictCritic(Fixed(math.log(0.6), math.log(0.2)), returns=(-1.0, 3.0))
    assert await critic.values([trajectory(1)]) == pytest.approx([-1 + 4 * 0.75])
    assert critic.predicts == "return"
    sure = VerdictCritic(Fixed(-1000.0, -0.01), returns=(-1.0, 3.0))
    assert await sure.values([trajectory(1)]) == pytest.approx([-1.0])


async def test_a_reader_that_answers_nan_is_refused():
    with pytest.raises(CriticError, match="answered nan"):
        await VerdictCritic(Fixed(math.nan, 0.0)).values([trajectory(1)])


@pytest.mark.parametrize(
    "wrong",
    [{"returns": (1.0, 1.0)}, {"least_mass": 1.0}, {"score": "p_bad"}, {"words": ("GOOD", " ")}],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ConfigurationError):
        VerdictCritic(Fixed(0.0, 0.0), **wrong)


def test_a_question_belongs_to_no_round():
    words = ("GOOD", "BAD")
    texts = [STEPWISE.prompt(trajectory(n), words) for n in range(4)]
    for now, later in pairwise(texts):
        assert later[: len(now) - 1] == now[:-1]
        assert later[-1] == now[-1]
    assert "GOOD" in texts[0][-1]
    assert not any("GOOD" in text for text in texts[-1][:-1])
    with pytest.raises(ConfigurationError, match="best"):
        VerdictFormat(STEPWISE.rounds, "Is it {best}?")


async def test_one_request_holds_each_distinct_prompt_once(served, tokenize):
    critic, meter = served.critic(), Meter()
    with metering(meter):
        await critic.values([trajectory(1), trajectory(2), trajectory(1)])
    [request] = served.requests
    first, second = (
        [token for text in SHORT.prompt(trajectory(n), ("GOOD", "BAD")) for token in tokenize(text)] for n in (1, 2)
    )
    prefixes = [list(ids) for ids in Spellings.of(("GOOD", "BAD"), tokenize).prefixes]
    assert request["prompt"] == [first + ids for ids in prefixes] + [second + ids for ids in prefixes]
    tokens = sum(map(len, request["prompt"]))
    assert critic.usage == Usage(calls=1, input_tokens=tokens, output_tokens=len(request["prompt"]))
    assert meter.by_model() == {"critic": {"tiny": critic.usage}}
    assert (await critic.values([])).shape == (0,)
    assert len(served.requests) == 1


async def test_a_large_batch_is_split_between_prompts(served):
    trajectories = [trajectory(n) for n in range(5)]
    whole = await served.critic().log_odds(trajectories)
    split = VerdictCritic(served.reader(max_batch=9), prompt_format=SHORT, least_mass=0.0)
    assert await split.log_odds(trajectories) == pytest.approx(whole, abs=1e-9)
    # With 4 rows per prompt, two prompts fit into a request.
    assert sorted(len(request["prompt"]) for request in served.requests[1:]) == [4, 8, 8]


@pytest.mark.thorough
async def test_a_long_trajectory_loses_its_oldest_rounds_not_the_question(model, folder, tokenize):
    served, words = Served(model, folder, limit=60), ("GOOD", "BAD")
    long = trajectory(8)
    await served.critic().values([long])
    longest = max(served.requests[0]["prompt"], key=len)
    kept = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).decode(longest)
    texts = SHORT.prompt(long, words)
    assert kept.startswith(texts[0])
    assert texts[-2] + texts[-1] in kept
    assert texts[1] not in kept
    # The fake server asserts that the longest row leaves room for the answer.
    for limit in range(56, 150):
        server = Served(model, folder, limit=limit)
        await server.critic().values([long])
    with pytest.raises(CriticError, match="the critic's limit is"):
        await Served(model, folder, limit=30).critic().values([long])


def without_logprobs(answer):
    return {"choices": [{**choice, "logprobs": None} for choice in answer["choices"]]}


def ignoring(answer):
    choices = [
        {**choice, "logprobs": {"top_logprobs": [dict([next(iter(choice["logprobs"]["top_logprobs"][0].items()))])]}}
        for choice in answer["choices"]
    ]
    return {"choices": choices}


def typed_wrong(answer):
    for choice in answer["choices"]:
        choice["logprobs"]["top_logprobs"] = [dict.fromkeys(choice["logprobs"]["top_logprobs"][0], True)]
    return answer


def scaled(factor, shift=0.0):
    def change(answer):
        for choice in answer["choices"]:
            choice["logprobs"]["top_logprobs"] = [
                {token: value * factor + shift for token, value in choice["logprobs"]["top_logprobs"][0].items()}
            ]
        return answer

    return change


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (without_logprobs, "has no log-probabilities.*verdict:provider:model"),
        (ignoring, "vLLM 0.26 or newer.*ignore `logprob_token_ids`"),
        (lambda answer: {"choices": answer["choices"][1:]}, "expected 4 rows in `choices`, got 3"),
        (scaled(1.0, 20.0), "expected log-probabilities"),
        (scaled(math.nan), "logits are broken"),
        (scaled(0.0, -9999.0), "vLLM 0.32 writes -9999 over.*on a separate server"),
        (typed_wrong, "expected the log-probability of token"),
    ],
)
async def test_an_invalid_answer_is_refused(model, folder, change, match):
    critic = Served(model, folder, change=change).critic()
    with pytest.raises(CriticServerError, match=match):
        await critic.values([trajectory(1)])


async def test_the_model_is_found_by_name(model, folder):
    served = Served(model, folder, names=("tiny", "other"))
    with pytest.raises(CriticServerError, match="other, tiny"):
        await served.critic().values([trajectory(1)])
    with pytest.raises(CriticServerError, match="model 'tin' is not on this server"):
        await VerdictCritic(served.reader(model="tin"), prompt_format=STEPWISE).values([trajectory(1)])
    await VerdictCritic(served.reader(model="other"), prompt_format=STEPWISE).values([trajectory(1)])
    assert served.requests[0]["model"] == "other"


async def test_a_model_without_a_tokenizer_says_what_to_do(model, tmp_path):
    with pytest.raises(CheckpointError, match="checkpoint=path/to/model"):
        await Served(model, tmp_path / "gone").critic().values([trajectory(1)])
    # A named folder is checked at once.
    with pytest.raises(CheckpointError, match=r"expected a model's folder, with tokenizer\.json in it"):
        Served(model, tmp_path).reader(checkpoint=tmp_path)


async def test_a_prompt_starts_with_the_tokenizers_prefix(model, folder, tokenize, tmp_path):
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    begin, end = tokenize("<"), tokenize(">")
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="< $A >", special_tokens=[("<", begin[0]), (">", end[0])]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    served, words = Served(model, tmp_path), ("GOOD", "BAD")
    odds = await served.critic().log_odds([trajectory(1)])
    texts = SHORT.prompt(trajectory(1), words)
    assert served.requests[0]["prompt"][0] == begin + [token for text in texts for token in tokenize(text)]
    assert odds == pytest.approx([np.subtract(*by_hand(model, tokenize, ("<", *texts), words))], abs=1e-5)


@pytest.fixture
def checkpoint(model, tokenize) -> VerdictCheckpoint:
    words, golden = ("yes", "no"), []
    prompt_format = VerdictFormat(PromptFormat("own", "Q {instruction}", "{turn}:{observation}", "?"), "")
    for steps in (0, 2):
        segments = prompt_format.prompt(trajectory(steps), words)
        ids = tokenize("#") + [token for text in segments for token in tokenize(text)]
        good, bad = by_hand(model, tokenize, ("#", *segments), words)
        golden.append(Golden(segments, tuple(ids), good - bad))
    prefix = tuple(tokenize("#"))
    return VerdictCheckpoint(prompt_format, words, 120, prefix, tuple(golden), data_hash="d", settings={"lr": 1})


async def test_a_trained_model_has_its_own_words_and_format(checkpoint, model, folder, tokenize, tmp_path):
    trained = tmp_path / "trained"
    trained.mkdir()
    (trained / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    checkpoint.save(trained)
    assert VerdictCheckpoint.load(trained) == checkpoint
    served = Served(model, trained)
    log_odds = await served.critic().log_odds([trajectory(1)])
    texts = ("#", *checkpoint.prompt_format.prompt(trajectory(1), ("yes", "no")))
    assert log_odds == pytest.approx([np.subtract(*by_hand(model, tokenize, texts, ("yes", "no")))], abs=1e-5)
    assert len(served.requests) == 2  # the golden prompts, then the trajectory


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (
            lambda saved: replace(saved, golden=(replace(saved.golden[0], score=9.0), saved.golden[1])),
            "golden log-odds",
        ),
        (lambda old: replace(old, words=("no", "yes")), "golden log-odds"),
        (lambda old: replace(old, prefix_ids=(1,)), "other token ids"),
    ],
)
async def test_a_model_that_does_not_reproduce_its_golden_log_odds_is_refused(
    checkpoint, model, folder, tmp_path, wrong, match
):
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    wrong(checkpoint).save(tmp_path)
    critic = Served(model, tmp_path).critic()
    for _ in range(2):
        with pytest.raises(CheckpointError, match=match):
            await critic.values([trajectory(1)])
    accepted = VerdictCritic(Served(model, tmp_path).reader(tolerance=100.0))
    if match == "golden log-odds":
        await accepted.values([trajectory(1)])


async def test_golden_log_odds_are_checked_again_after_an_interruption(checkpoint, model, folder, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    checkpoint.save(tmp_path)
    served = Served(model, tmp_path)
    critic = served.critic()
    before = await critic.log_odds([trajectory(1)])
    served.failing = 1
    served.change = scaled(0.5)  # another model has replaced it
    with pytest.raises(CheckpointError, match="golden log-odds"):
        await critic.log_odds([trajectory(1)])
    served.change = None
    assert await critic.log_odds([trajectory(1)]) == pytest.approx(before)


async def test_every_second_request_may_be_lost(checkpoint, model, folder, tmp_path):
    """A load balancer with a dead server: each request succeeds at the second attempt and is not repeated."""
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    checkpoint.save(tmp_path)
    served = Served(model, tmp_path)
    expected = await served.critic().log_odds([trajectory(1)])
    count = itertools.count()

    def flaky(request):
        return httpx.Response(502) if next(count) % 2 == 0 else served.answer(request)

    server = ModelServer("http://tiny", transport=httpx.MockTransport(flaky), retry_for=30)
    critic = VerdictCritic(CompletionsReader(server), prompt_format=SHORT, least_mass=0.0)
    assert await critic.log_odds([trajectory(1)]) == pytest.approx(expected)
    # Model list and golden texts, the trajectory, model list and golden texts again: two attempts each.
    assert next(count) == 10


async def test_a_server_whose_model_changes_with_every_interruption_is_an_error(model, folder):
    served = Served(model, folder)
    count = itertools.count()

    def changing(request):
        if request.url.path != "/v1/models" and next(count) % 2 == 0:
            served.limit -= 1
            return httpx.Response(502)
        return served.answer(request)

    server = ModelServer("http://tiny", transport=httpx.MockTransport(changing), retry_for=30)
    with pytest.raises(CriticServerError, match="servers of different models"):
        await VerdictCritic(CompletionsReader(server), prompt_format=SHORT).values([trajectory(1)])


def test_the_string_of_a_served_model():
    critic: Any = parse_critic(
        "verdict:http://host:8000/v1?model=org/name&low=-1&high=2&score=p_good&words=YES,NO&max_batch=7&least_mass=0.2"
    )
    assert critic._least_mass == 0.2
    assert (critic.returns, critic.score, critic.name) == (
        (-1.0, 2.0),
        "p_good",
        "verdict:http://host:8000?model=org/name",
    )
    assert isinstance(critic.reader, CompletionsReader)


def test_the_string_of_a_chat_model(monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    critic: Any = parse_critic("verdict:openai:some-model?key_env=MY_KEY&base_url=http://127.0.0.1:9&high=5&timeout=3")
    assert (critic.name, critic.returns) == ("verdict:openai:some-model", (0.0, 5.0))
    assert isinstance(critic.reader, TopKReader)


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("verdict:", "needs a target"),
        ("verdict:http://host:8000?modell=x", "did you mean 'model'"),
        ("verdict:http://host:8000?score=p_bad", "score must be one of"),
        ("verdict:http://host:8000?words=YES", "success,failure"),
        ("verdict:http://host:8000?low=2", r"expected returns=\(failure, success\)"),
        ("verdict:openai:m?key_env=NOT_SET_ANYWHERE", "is not set"),
        ("verdict:noprovider:m", "could not be created"),
        ("verdict:openai:m?max_batch=3", "no option 'max_batch'"),
        ("verdict:http://host:8000?least_mass=1", "least_mass must be a probability below 1"),
        ("verdict:http://host:8000?timeout=0", "timeout must be a number"),
    ],
)
def test_an_invalid_string_is_refused(spec, match):
    with pytest.raises(CriticSpecError, match=match):
        parse_critic(spec)
