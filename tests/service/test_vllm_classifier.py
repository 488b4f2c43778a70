"""`classify:` on a real vLLM server, with a classifier of three labels, against transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amc_agents import AtSteps, amc
from amc_agents.critics.classifier import as_text, chat
from amc_agents.critics.spec import parse_critic
from amc_agents.errors import CriticError, CriticServerError
from amc_agents.operations.serve import ServedModel
from amc_agents.types import Step, Task, Trajectory
from tests.population.worlds import number_agent, start, sum_world
from tests.service.servers import needs_vllm, vllm_server

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.service

CALL = '{"args": {"order": 7}, "name": "find_order"}'
STATES = [
    Trajectory(
        Task("t", "Where is order 7?"),
        (Step(CALL, f"It was shipped {'to you ' * n}.", "I look it up."), Step("It is on its way."))[: n + 1],
    )
    for n in range(3)
]
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n# Tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_classifier(folder, template=TEMPLATE):
    """A small Llama of random weights with three labels, a byte-level tokenizer and a template as Qwen's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    special = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator([CALL], trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token=special[0], eos_token=special[2])
    tokenizer.chat_template = template
    config: Any = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=1024, pad_token_id=0, bos_token_id=None,
        eos_token_id=2, initializer_range=0.3,
    )  # fmt: skip
    config.num_labels = 3
    torch.manual_seed(0)
    LlamaForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_classifier(tmp_path_factory.mktemp("classifier"))


@pytest.fixture(scope="module")
def url(folder):
    with vllm_server(ServedModel("value", str(folder), "reward", "float32"), max_tokens=512) as server:
        server.wait_until_healthy(400)
        yield server.url


@pytest.fixture(scope="module")
def logits(folder):
    """Trajectory's prompt -> the three logits of transformers."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model: Any = AutoModelForSequenceClassification.from_pretrained(str(folder)).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))

    def of(prompt, tools=None):
        text = prompt
        if not isinstance(prompt, str):
            text = tokenizer.apply_chat_template(prompt, tools=tools, tokenize=False, add_generation_prompt=False)
        with torch.no_grad():
            return model(**tokenizer(text, return_tensors="pt")).logits[0].double().numpy()

    return of


def probabilities(of_logits):
    weights = np.exp(of_logits - of_logits.max())
    return weights / weights.sum()


@needs_vllm
async def test_values_are_the_labels_scores_of_transformers(url, logits):
    for label in range(3):
        values = await parse_critic(f"classify:{url}?label={label}&range=-1,1").values(STATES)
        expected = [2 * probabilities(logits(chat(state)))[label] - 1 for state in STATES]
        assert values == pytest.approx(expected, abs=1e-4)
    assert np.ptp(values) > 0.01
    values = await parse_critic(f"classify:{url}?label=1&input=text&activation=false").values(STATES)
    assert values == pytest.approx([logits(as_text(state)["input"])[1] for state in STATES], abs=1e-3)
    values = await parse_critic(f"classify:{url}?label=1&input=text&endpoint=pooling").values(STATES)
    assert values == pytest.approx([probabilities(logits(as_text(state)["input"]))[1] for state in STATES], abs=1e-4)


@needs_vllm
async def test_a_run_and_the_limits_of_the_server(url):
    run = await amc(number_agent(), f"classify:{url}", environment=sum_world, n_particles=3, resample=AtSteps(1)).arun(
        start()
    )
    assert run.usage["critic"].input_tokens > 0
    long = Trajectory(Task("t", "word " * 2000))
    with pytest.raises(CriticServerError, match="use truncate=oldest"):
        await parse_critic(f"classify:{url}").values([long])
    assert np.isfinite(await parse_critic(f"classify:{url}?truncate=oldest").values([long])).all()
    with pytest.raises(CriticError, match="has 3 labels: expected 0 to 2"):
        await parse_critic(f"classify:{url}?label=3").values(STATES)


@needs_vllm
async def test_a_model_without_a_chat_template_is_named(tmp_path):
    folder = write_classifier(tmp_path / "plain", template=None)
    with vllm_server(ServedModel("value", str(folder), "reward", "float32"), max_tokens=512) as server:
        server.wait_until_healthy(400)
        with pytest.raises(CriticServerError, match="use input=text"):
            await parse_critic(f"classify:{server.url}").values(STATES)
        assert np.isfinite(await parse_critic(f"classify:{server.url}?input=text").values(STATES)).all()
