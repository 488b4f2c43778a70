from __future__ import annotations

import pytest
from langchain_tests.unit_tests import ChatModelUnitTests

from amc_agents.models.embedded import EmbeddedChatModel


class TestEmbeddedStandard(ChatModelUnitTests):
    folder: str

    @pytest.fixture(autouse=True)
    def _folder(self, model_folder):
        type(self).folder = str(model_folder)

    @property
    def chat_model_class(self):
        return EmbeddedChatModel

    @property
    def chat_model_params(self):
        return {"model": self.folder}

    @property
    def has_tool_calling(self):
        return False

    @property
    def has_tool_choice(self):
        return False

    @property
    def has_structured_output(self):
        return False
