"""Tests of critics run without a key in the environment."""

import pytest


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
