from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Before anything imports matplotlib or a tracer: no window is opened, nothing is sent anywhere.
os.environ["MPLBACKEND"] = "Agg"
for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2", "OPENAI_API_KEY", "AMC_CRITIC", "AMC_CONFIG"):
    os.environ.pop(name, None)

# A loaded machine is not a slow test; the examples are the same in every run.
settings.register_profile("amc", deadline=None, derandomize=True)
settings.load_profile("amc")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parents[1]
