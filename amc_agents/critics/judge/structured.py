"""The answer of a judge as a JSON object, whose form the server enforces: `judge:...?structured=yes`.

`response_format` with a JSON schema is the parameter of OpenAI's API, which vLLM and other servers have too. The score
has a field of its own, so text that the judge quotes from the record cannot be taken for it.
"""

from __future__ import annotations

import math
from typing import Any

from amc_agents.critics.judge.stated import json_object, without_reasoning
from amc_agents.critics.judge.style import JudgeStyle


def system_of(style: JudgeStyle) -> str:
    """Return the style's system message, which asks for the object in place of the style's own form."""
    return f"{style.system}\n\n{_FORM.format(kind='an integer' if style.whole else 'a number')}"


def response_format(style: JudgeStyle) -> dict[str, Any]:
    """Return the parameter of a request. The range is checked by `read`: not every server enforces one."""
    # The analysis comes first, so that a model reasons before it gives the score.
    fields = {"analysis": {"type": "string"}, "score": {"type": "integer" if style.whole else "number"}}
    schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    return {"type": "json_schema", "json_schema": {"name": "judgement", "strict": True, "schema": schema}}


def read(style: JudgeStyle, answer: str) -> float:
    """Return the score in an answer. Raises `ValueError` that describes the expected form."""
    # The text of a field may contain the mark of a reasoning's end.
    score = (json_object(answer) or json_object(without_reasoning(answer)) or {}).get("score")
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise ValueError('the answer must be a JSON object whose field "score" is a number')
    if style.whole and isinstance(score, float) and not (math.isfinite(score) and score.is_integer()):
        raise ValueError('the field "score" must be an integer')
    return style.checked(score)


_FORM = """\
In place of the line that was asked for above, answer with one JSON object and nothing else. Its field "analysis" \
holds your reasoning in a few sentences, its field "score" only NUMBER, {kind}."""
