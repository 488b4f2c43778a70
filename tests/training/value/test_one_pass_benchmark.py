"""The benchmark's GPU path, run on the CPU with a small shape."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from benchmarks import one_pass_training

SMALL = ["--layers", "1", "--hidden", "32", "--intermediate", "64", "--heads", "2", "--kv-heads", "1",
         "--vocabulary", "128", "--matmul", "64", "--no-memory", "--device", "cpu", "--dtype", "bfloat16",
         "--trajectories", "3", "--runs", "1", "--batches", "1,2", "--checkpointing", "auto"]  # fmt: skip


@pytest.mark.thorough
def test_the_path_of_a_gpu_runs(tmp_path, capsys):
    out = tmp_path / "results" / "one_pass.json"
    given = ["--shape", "llama-3.1-8b", *SMALL, "--tokens", "96", "--steps", "2,4", "--out", str(out)]
    run = one_pass_training.main([*given, "--paper-set", "--paper-trajectories", "20"])
    assert json.loads(out.read_text())["runs"] == [run]
    assert str(tmp_path) not in out.read_text()
    for result, steps in zip(run["results"], (2, 4), strict=True):
        assert (result["steps"], result["states"], result["bound"]) == (steps, 3 * (steps + 1), (steps + 1) / 2)
        one, prefixes = result["one_pass"], result["prefixes"]
        assert result["ratio_of_tokens"] == pytest.approx(prefixes["tokens"] / one["tokens"], abs=0.01)
        assert (steps + 1) / 2 < result["ratio_of_tokens"] < steps + 1
        assert one["mfu"] > 0
    assert run["paper_set"]["steps"] == run["paper_set"]["steps_measured"] == 3  # 16 trajectories, three epochs
    assert "min left" in capsys.readouterr().err
    given[given.index("2,4")] = "2"
    one_pass_training.main([*given, "--shape", "qwen2.5-3b"])
    one_pass_training.main(given)
    first, again = json.loads(out.read_text())["runs"]
    assert (first["shape"], again["shape"]) == ("qwen2.5-3b", "llama-3.1-8b")
    assert "paper_set" not in again  # the same shape on the same device: in its place


def test_both_ways_give_the_same_gradient(monkeypatch):
    arguments = one_pass_training.parsed([*SMALL, "--dtype", "float32"])
    bench = one_pass_training.Bench(arguments)
    gradients = []
    for way in one_pass_training.WAYS:
        rows = one_pass_training.rows_of(way, 3, 60, arguments)
        setting = one_pass_training.Setting(100)
        seen = []

        def keep(seen=seen):
            seen.extend(weight.grad.clone() for weight in bench.model.parameters() if weight.grad is not None)

        monkeypatch.setattr(bench.optimizer, "step", keep)
        bench.settings = replace(bench.settings, max_grad_norm=1e9)
        assert len(one_pass_training.passes_of(rows, setting)) > 1
        bench.time(rows, setting)
        gradients.append(seen)
    assert max(float(gradient.abs().max()) for gradient in gradients[0]) > 1e-3
    for gradient, other in zip(*gradients, strict=True):
        assert float((gradient - other).abs().max()) <= 1e-4 * max(1.0, float(gradient.abs().max()))
