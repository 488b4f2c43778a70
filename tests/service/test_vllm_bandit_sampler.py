"""The bandit sampler on a real vLLM server, as the posterior sampler of LLM-PSRL in `amc explore`."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from amc_agents.bench.results_folder import read_results
from amc_agents.cli import main
from tests.service.servers import needs_vllm, vllm_server

trials_of = pytest.importorskip("amc_agents_exploration.comparison.trials")
exploration = pytest.importorskip("amc_agents_exploration")
N_EPISODES = 40

pytestmark = pytest.mark.service


@needs_vllm
def test_a_served_model_explores_a_bandit(tmp_path, monkeypatch):
    monkeypatch.setenv("AMC_TEST_KEY", "none")
    with vllm_server(str(exploration.BANDIT_SAMPLER), role="policy", name="bandit-sampler") as server:
        served = f"exact=policy,updater&base_url={server.url}/v1&key_env=AMC_TEST_KEY"
        line = f"explore --world bandit --agent psrl:openai:bandit-sampler?{served} --temperature 1 --trials 3"
        more = f"--episodes {N_EPISODES} --workers 1 --out {tmp_path}"
        monkeypatch.setattr(sys, "argv", ["amc", *line.split(), *more.split()])
        with pytest.raises(SystemExit, match="0"):
            main()
    trials = read_results(tmp_path, trials_of.Trial.from_json)
    assert len(trials) == 3
    for trial in trials:
        assert trial.usage.calls == N_EPISODES, "every answer was valid at the first attempt"
        assert trial.usage.tokens == N_EPISODES * (23 + 12), "a prompt and an answer"
        pulls = np.bincount(np.ravel(trial.choices), minlength=5)
        assert pulls.min() > 0
    (explored,) = json.loads((tmp_path / "exploration.json").read_text())["explorers"]
    assert explored["lost_turns"] == 0
    assert explored["unreported"] == 0
