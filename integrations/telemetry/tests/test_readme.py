from __future__ import annotations

import re
from pathlib import Path

from amc_agents_telemetry import uninstrument

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_code_of_the_readme_runs():
    (code,) = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    try:
        exec(compile(code, str(README), "exec"), {})
    finally:
        uninstrument()
