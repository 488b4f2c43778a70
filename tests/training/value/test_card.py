"""The card as a Markdown reader sees it."""

import html
import re
import shlex
from dataclasses import replace

import numpy as np
import pytest
from markdown_it import MarkdownIt

from amc_agents.critics.calibration import AffineCalibration
from amc_agents.critics.render import PromptFormat
from amc_agents.critics.value.checkpoint import ValueCheckpoint
from amc_agents.critics.value.local import ADAPTER, shipped_folder
from amc_agents.errors import StorageError
from amc_agents.operations.serve.vllm_command import _ROLE
from amc_agents.training.critic_calibration import States, calibrate
from amc_agents.training.value.saving import CARD, CardFacts, card, write_card

yaml = pytest.importorskip("yaml")

HOSTILE = "a|b \\ `c` <img src=x> *d* _e_ [f](g) & &lt; ~~h~~ # i $j$ {{ 7 * 7 }} k\nl \\| m"
LOG = [
    {"step": 10, "epoch": 0.5, "loss": 0.25, "learning_rate": 1e-5},
    {"step": 20, "epoch": 1.0, "loss": 0.125, "learning_rate": 5e-6},
    {"step": 20, "epoch": 1.0, "eval_loss": 0.2, "eval_runtime": 3.5},
    {"step": 20, "train_runtime": 99.5, "total_flos": 1e15, "train_loss": 0.1875},
]
FACTS = CardFacts(
    "org/base-8B", 500, 4000, 40_000, ("gpt-x", "small"), 50, 49, LOG, {"device": "1 x H100", "seconds": 7200.5}
)


@pytest.fixture(scope="module")
def checkpoint():
    return ValueCheckpoint.load(shipped_folder("crafting") / ADAPTER)


def parsed(text):
    """Front matter, the HTML of the rest, and its tables as rows of plain text by their first header."""
    _, front, body = re.split(r"^---\n", text, maxsplit=2, flags=re.MULTILINE)
    page = MarkdownIt("commonmark").enable("table").render(body)
    tables = {}
    for found in re.findall(r"<table>.*?</table>", page, re.DOTALL):
        rows = [
            [html.unescape(cell).strip() for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
            for row in re.findall(r"<tr>.*?</tr>", found, re.DOTALL)
        ]
        assert len({len(row) for row in rows}) == 1
        assert not any(re.search("<[a-z]", cell) for row in re.findall(r"<td[^>]*>(.*?)</td>", found) for cell in [row])
        tables[rows[0][0]] = rows[1:]
    return yaml.safe_load(front), page, tables


def test_the_front_matter_is_that_of_a_model_on_the_hub(checkpoint):
    front, _, _ = parsed(card("critic", checkpoint, FACTS))
    assert front["library_name"] == "transformers"
    assert front["pipeline_tag"] == "text-classification"
    assert (front["base_model"], front["base_model_relation"]) == ("org/base-8B", "finetune")
    assert {"amc-agents", "value-model"} <= set(front["tags"])


@pytest.mark.parametrize("base", ["/home/somebody/models/base", "models/base/", "base"])
def test_a_base_model_in_a_folder_is_named_without_its_path(checkpoint, tmp_path, monkeypatch, base):
    (tmp_path / "models/base").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    text = card("critic", checkpoint, replace(FACTS, base_model=base))
    assert "base_model" not in parsed(text)[0]
    assert "Trained from `base` by" in text
    assert "models" not in text
    assert "somebody" not in text


def test_the_card_contains_all_facts(checkpoint):
    _, page, tables = parsed(card("critic", checkpoint, FACTS))
    assert dict(tables["data"]) == {
        "tasks": "500", "held out for metrics and early stopping": "50", "held out for calibration": "49",
        "trajectories": "4000", "states": "40000", "policies": "gpt-x, small", "hash": checkpoint.data_hash,
    }  # fmt: skip
    settings = dict(tables["setting"])
    assert settings["device"] == "1 x H100"
    assert settings["base model's weights (SHA-256)"] == checkpoint.base_model_hash
    assert settings["learning_rate"] == f"{checkpoint.settings['learning_rate']:.4g}"
    assert not any(name.startswith("prompt_format") for name in settings)
    assert dict(tables["metric"])["mean squared error"] == f"{checkpoint.metrics['loss']:.4g}"
    assert dict(tables["t"]) == {str(t): f"{one:.4g}" for t, one in checkpoint.metrics["auc_by_step"].items()}
    assert tables["prompt"] == [
        [str(i), str(len(one.segments) - 1), str(len(one.token_ids)), f"{one.score:.6f}"]
        for i, one in enumerate(checkpoint.golden, 1)
    ]
    written = checkpoint.prompt_format
    assert f"{written.name}, version {written.version}; at most {checkpoint.max_tokens} tokens" in page
    for template in (written.opening, written.round, written.marker):
        assert f"<pre><code>{html.escape(template)}\n</code></pre>" in page
    assert "None was fitted" in page


def test_metrics_by_step_are_one_row_a_step(checkpoint):
    text = card("critic", checkpoint, FACTS)
    assert "| step | epoch | loss | learning_rate | eval_loss | train_loss |" in text
    assert parsed(text)[2]["step"] == [
        ["10", "0.5", "0.25", "1e-05", "", ""], ["20", "1", "0.125", "5e-06", "0.2", "0.1875"],
    ]  # fmt: skip


def test_a_long_log_is_thinned_and_says_so(checkpoint):
    log = [{"step": step, "loss": 1 / step} for step in range(1, 1001)]
    log[500:500] = [{"step": 500, "eval_loss": 0.25}]
    text = card("critic", checkpoint, replace(FACTS, history=log))
    steps = [int(row[0]) for row in parsed(text)[2]["step"]]
    assert steps == sorted(set(steps))
    assert {1, 500, 1000} <= set(steps)
    assert 50 < len(steps) <= 63
    assert f"({len(steps)} of 1000 logged steps" in text
    assert "Metrics by step" not in card("critic", checkpoint, replace(FACTS, history=()))


def test_no_value_breaks_a_table_or_becomes_markup(checkpoint):
    hostile = replace(
        checkpoint,
        settings={"nested": {"lora": ["q_proj", HOSTILE], HOSTILE: HOSTILE}, "none": None, "on": True},
        metrics={"loss": 0.1, HOSTILE: HOSTILE, "pearson": None, "auc": float("nan")},
        prompt_format=PromptFormat(HOSTILE, "````\n{instruction}\n```", "{turn} ~~~ {observation}", "|`"),
    )
    facts = replace(FACTS, policies=(HOSTILE,), run={HOSTILE: HOSTILE}, base_model="x`y|z")
    text = card(HOSTILE, hostile, facts)
    _, page, tables = parsed(text)
    one_line = " ".join(HOSTILE.split())
    assert ["none", "none"] in tables["setting"]
    assert ["on", "yes"] in tables["setting"]
    assert [f"nested.{one_line}", one_line] in tables["setting"]
    assert ["nested.lora", f"q_proj, {one_line}"] in tables["setting"]
    assert [one_line, one_line] in tables["setting"]
    assert dict(tables["data"])["policies"] == one_line
    assert [one_line, one_line] in tables["metric"]
    assert ["Pearson r (states with a future)", "none"] in tables["metric"]
    assert "<img" not in page
    assert "<em>" not in page
    assert "<code>x`y|z</code>" in page
    assert f"<pre><code>{html.escape(hostile.prompt_format.opening)}\n</code></pre>" in page
    assert len(re.findall(r"<h1>", page)) == 1


def test_the_serving_command_is_that_of_amc_serve(checkpoint):
    text = card("my critic", checkpoint, FACTS)
    (shell,) = re.findall(r"```sh\n(.*?)\n```", text, re.DOTALL)
    amc, vllm, doctor = map(shlex.split, shell.splitlines())
    assert amc == ["amc", "serve", "value", "my critic"]
    assert vllm[:3] == ["vllm", "serve", "my critic"]
    for flag in _ROLE["value"][:4]:
        assert flag in vllm
    assert vllm[vllm.index("--max-model-len") + 1] == str(checkpoint.max_tokens)
    assert vllm[vllm.index("--dtype") + 1] == checkpoint.settings["dtype"]
    assert doctor == ["amc", "doctor", "--critic", "vllm:http://127.0.0.1:8000?model=my critic"]
    assert 'critic="hf:my critic"' in text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"target": "future"}, ["the return still to come", "eq. 7</a>", "<code>value = score</code>"]),
        ({"target": "return"}, ["the whole return, <code>R = r_1 + ... + r_T</code>"]),
        (
            {"beta": 0.3, "target": "future"},
            ["eq. 5</a>", "beta log E[exp(G / beta) given s_t]", "runs with beta = 0.3 alone", "beta=0.3"],
        ),
        (
            {"link": "sigmoid", "scale": 2.0, "calibration": AffineCalibration(0.5, -0.25)},
            ["binary cross-entropy", "value = calibration(2 x sigmoid(score))", "<code>0.5 x value -0.25</code>"],
        ),
        (
            {"settings": {"objective": {"loss": "weighted", "beta": 0.5}}, "target": "future"},
            ["exp(G / beta)</code> with beta = 0.5", "table 7"],
        ),
        ({"settings": {"shuffle_targets": True}}, ["<strong>A control</strong>"]),
    ],
)
def test_the_card_explains_the_meaning_of_a_value(checkpoint, changes, says):
    page = parsed(card("critic", replace(checkpoint, **changes), FACTS))[1]
    for one in says:
        assert one in html.unescape(page)
    assert "https://arxiv.org/abs/2606.05296" in page


def test_the_card_shows_the_measured_calibration(checkpoint):
    rng = np.random.default_rng(0)
    values = rng.normal(size=300)
    found = calibrate("isotonic", States(values, values / 2 + rng.normal(size=300), np.arange(300) % 30, np.ones(300)))
    told = replace(checkpoint, calibration=found.calibration, metrics={"calibration": found.report.as_plain()})
    _, page, tables = parsed(card("critic", told, FACTS))
    report = found.report
    assert tables[""] == [
        [label, *(f"{one.mean:.4f} ± {one.standard_error:.4f}" for one in figures)]
        for label, figures in {
            "expected calibration error": (report.error_before, report.error_after, report.error_change),
            "mean squared error": (report.squared_before, report.squared_after, report.squared_change),
        }.items()
    ]
    assert tables["after: predicted"] == [
        [f"{one.predicted:.4g}", f"{one.observed:.4f} ± {one.standard_error:.4f}", str(one.n)] for one in report.after
    ]
    assert "Fitted on 300 states of 30 held-out tasks" in page
    assert f"a rising curve of {len(found.calibration.value)} corners" in page
    assert "States are weighted" not in page
    weighted = replace(told, settings={"objective": {"loss": "weighted", "beta": 0.5}})
    assert "States are weighted as in the loss." in card("critic", weighted, FACTS)


def test_the_card_is_the_folders_readme(checkpoint, tmp_path):
    folder = tmp_path / "my-critic"
    folder.mkdir()
    path = write_card(folder, checkpoint, FACTS)
    assert path == folder / CARD == folder / "README.md"
    assert path.read_text(encoding="utf-8") == card("my-critic", checkpoint, FACTS)
    assert "# my-critic: a value model" in path.read_text(encoding="utf-8")


def test_a_card_that_cannot_be_written_leaves_the_old_card(checkpoint, tmp_path, monkeypatch):
    old = write_card(tmp_path, checkpoint, FACTS).read_text()

    def fails(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(StorageError):
        write_card(tmp_path, checkpoint, replace(FACTS, n_tasks=1))
    assert [path.name for path in tmp_path.iterdir()] == [CARD]
    assert (tmp_path / CARD).read_text() == old


@pytest.mark.thorough
def test_what_a_training_writes_contains_no_key(base_model, toy_trajectories, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    from amc_agents.training.dataset import LoggedTrajectory, write_shard
    from amc_agents.training.value.train_value import EMBEDDED, train_value

    key, data, out = "hf_canary0123456789abcdef0123456789abcd", tmp_path / "data", tmp_path / "critic"
    monkeypatch.setenv("HF_TOKEN", key)
    # Older versions wrote any name of a policy.
    named = f"http://me:{key}@host/v1"
    write_shard(data, [LoggedTrajectory(each, i % 3, named) for i, each in enumerate(toy_trajectories(10, 3))])
    train_value(base_model, data, out, replace(EMBEDDED, epochs=1))
    assert "policies | http://" in (out / CARD).read_text()
    assert [path.name for path in out.rglob("*") if path.is_file() and key.encode() in path.read_bytes()] == []
