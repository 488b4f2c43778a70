"""On a real vLLM server, with a classifier of three labels, against transformers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from amc_agents_openhands import openhands_chat
from amc_agents_openhands.critic import from_spec

pytest.importorskip("torch")
from tests.service.servers import needs_vllm
from tests.service.test_vllm_classifier import STATES, folder, logits, probabilities, url

__all__ = ["folder", "logits", "url"]
pytestmark = pytest.mark.service
TOOLS = [{"type": "function", "function": {"name": "find_order", "parameters": {"type": "object"}}}]


@needs_vllm
async def test_openhands_prompts_contain_the_tools(url, logits, tmp_path):
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    (tmp_path / "system.txt").write_text("You are helpful.")
    critic = from_spec(url, {"tools": str(tmp_path / "tools.json"), "system": str(tmp_path / "system.txt")})
    values = await critic.values(STATES)
    rendered = [openhands_chat(state, "You are helpful.") for state in STATES]
    assert values == pytest.approx([probabilities(logits(each, TOOLS))[0] for each in rendered], abs=1e-4)
    without = [probabilities(logits(each))[0] for each in rendered]
    assert np.abs(values - without).max() > 1e-3
