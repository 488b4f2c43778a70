"""The exported folder of the shipped value model: equal scores in every program, written atomically."""

import json
import shutil

import numpy as np
import pytest

from amc_agents.critics.value import local
from amc_agents.critics.value.checkpoint import FILE, ValueCheckpoint
from amc_agents.critics.value.local import export_embedded_value
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.models.embedded import model_folder
from amc_agents.models.embedded.decoder import LlamaScorer
from amc_agents.models.embedded.llama import NumpyLlama

SHIPPED = model_folder("crafting")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return export_embedded_value(SHIPPED, tmp_path_factory.mktemp("export") / "value")


def test_the_folder_is_complete_and_has_no_leftovers_beside_it(exported):
    names = {"amc_value.json", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in exported.iterdir()} == names
    assert [path.name for path in exported.parent.iterdir()] == ["value"]
    assert (exported / FILE).read_bytes() == (SHIPPED / "value" / FILE).read_bytes()
    config = json.loads((exported / "config.json").read_text())
    assert config["architectures"] == ["LlamaForSequenceClassification"]
    assert config["dtype"] == "float32"
    assert len(config["id2label"]) == 1


def test_numpy_reads_the_golden_scores_from_it(exported):
    checkpoint = ValueCheckpoint.load(exported)
    scores = LlamaScorer(NumpyLlama.load(exported)).values(checkpoint.handshake_rows())
    checkpoint.check_scores(scores, "export", tolerance=1e-5)


def test_transformers_gives_the_scores_of_numpy(exported):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        exported, dtype="auto", output_loading_info=True
    )
    assert not any(report.values())  # nothing missing, nothing left over
    assert model.dtype == torch.float32
    rows = ValueCheckpoint.load(exported).handshake_rows()
    with torch.no_grad():
        theirs = [float(model.eval()(input_ids=torch.tensor([row])).logits[0, 0]) for row in rows]
    ours = LlamaScorer(NumpyLlama.load(SHIPPED, SHIPPED / "value")).values(rows)
    assert np.ptp(ours) > 0.1
    np.testing.assert_allclose(theirs, ours, atol=1e-5)


async def test_the_hf_critic_loads_it(exported):
    pytest.importorskip("transformers")
    from amc_agents import parse_critic
    from amc_agents.envs.crafting import generate_tasks
    from amc_agents.types import Trajectory

    states = [Trajectory(task, ()) for task in generate_tasks(3, "shipped")]
    theirs = await parse_critic(f"hf:{exported}").values(states)
    np.testing.assert_allclose(theirs, await parse_critic("embedded:crafting").values(states), atol=1e-5)


def test_a_folder_with_files_is_refused_and_unchanged(exported, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="is not empty"):
        export_embedded_value(SHIPPED, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert export_embedded_value(SHIPPED, empty) == empty
    assert (empty / "config.json").is_file()


def test_a_failure_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "_TOKENIZER", ("tokenizer.json", "missing.json"))
    with pytest.raises(FileNotFoundError):
        export_embedded_value(SHIPPED, tmp_path / "deep" / "value")
    assert list((tmp_path / "deep").iterdir()) == []


def test_an_adapter_of_other_weights_is_refused(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(SHIPPED, folder)
    values = json.loads((folder / "value" / FILE).read_text())
    (folder / "value" / FILE).write_text(json.dumps(values | {"base_model_hash": "0" * 64}))
    with pytest.raises(CheckpointError, match="trained on other weights"):
        export_embedded_value(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_without_an_adapter_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"amc_value\.json does not exist"):
        export_embedded_value(tmp_path, tmp_path / "out")
