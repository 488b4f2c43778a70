"""Every exception of the library survives pickling: other processes and machines report them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from amc_agents import errors
from amc_agents.usage import Usage

MADE = [
    errors.ConfigurationError("wrong"),
    errors.StorageError("/a/file", "the disk is full"),
    errors.MissingExtra("peft", "train"),
    errors.ReplayDivergence(2, "go", "a", "b"),
    errors.BudgetExhausted({"calls": 3}, {"calls": 3}, usage={"policy": Usage()}),
    errors.UnreadableAnswer(np.array([0.5]), "1 of 1 answers"),
    errors.CriticServerError("http://a", "gone", 503),
]


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_an_error_keeps_its_class_message_and_facts(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
