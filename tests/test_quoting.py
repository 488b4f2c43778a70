import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import amc_agents
from amc_agents import quoting
from amc_agents.quoting import excerpt, keep_secret, listed, masked, printable, quoted

KEY = 'sk-"/+\\0123456789'


@pytest.fixture(autouse=True)
def _one_secret(monkeypatch):
    monkeypatch.setattr(quoting, "_secrets", set())
    keep_secret(KEY)
    keep_secret("x")


def test_a_key_is_hidden_in_every_way_of_writing_it():
    for text in (KEY, repr(KEY), repr({"key": KEY}), 'sk-\\"/+\\\\0123456789', "sk-%22%2F%2B%5C0123456789"):
        assert "0123456789" not in masked(f"before {text} after x")
        assert masked(f"before {text} after x").endswith("after x")


@pytest.mark.parametrize("most", range(1, 60))
def test_a_key_is_hidden_before_a_text_is_cut(most):
    text = f"{'.' * 20}{KEY}{'.' * 20}"
    for shown in (excerpt(text, most), quoted(text, most), quoted([{"a": text}], most)):
        assert "sk" not in shown
        assert len(shown) <= most + 3


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("vllm:http://me:pw@host:8000?model=a", "vllm:http://***@host:8000?model=a"),
        ("judge:openai:m?api_key=abc&key_env=NAME", "judge:openai:m?api_key=***&key_env=NAME"),
        ("http://host/?token=abc#here", "http://host/?token=***#here"),
        ("mail me@host about key=value", "mail me@host about key=value"),
    ],
)
def test_passwords_in_addresses_are_hidden(text, shown):
    assert masked(text) == shown


def test_what_steers_a_terminal_is_written_out():
    assert printable("a\x1b[31mb\rc\x9b2J\u202ed\ne\tf") == "a\\u001b[31mb\\u000dc\\u009b2J\\u202ed\ne\tf"
    assert excerpt("one\n  two\x1b[2J") == "one two\\u001b[2J"
    assert printable("\x1b]8;;http://evil\x1b\\text") == "\\u001b]8;;http://evil\\u001b\\text"


def test_what_hides_a_message_is_written_out_as_in_json():
    for character in ("\ufeff", "\u206a", "\ufff9", "\U000e0041", "\U000e007f", "\ud800"):
        assert printable(character) == json.dumps(character)[1:-1]
    assert printable("e\u0301 \u200d \u0645\u200c \U0001f600") == "e\u0301 \u200d \u0645\u200c \U0001f600", (
        "used by languages"
    )


@pytest.mark.thorough
def test_a_large_or_deep_value_is_shown_in_part():
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    assert quoted(deep) == "[[[[...]]]]"
    assert quoted(dict.fromkeys(range(100), 0)) == "{0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: 0, 6: 0, 7: 0, ...: ...}"
    assert len(quoted(["y" * 10_000_000] * 1000, 200)) == 203
    assert listed(range(10)) == "0, 1, 2, 3, 4, 5, 6, 7 and 2 more"


HARMLESS = {
    "_lazy.py": ("package", "name"),
    "cli/tune.py": ("str(files[1])",),
    "settings.py": ("field.default",),
    "testing/exact_roles.py": ("float(at_stake",),
}
"""File -> beginnings of values of our own, or of a command that the user can paste, which `!r` writes whole."""


def unbounded_quotes(code: str) -> Iterator[str]:
    """Every value that a text quotes by `!r`, outside `__repr__`: nothing limits its length, and nothing masks it."""
    tree = ast.parse(code)
    own = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__repr__"]
    allowed = {id(inner) for node in own for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in allowed:
            continue
        if isinstance(node, ast.FormattedValue) and node.conversion == ord("r"):
            yield ast.unparse(node.value)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\{[^{}\s]*!r[:}]", node.value)


def test_values_in_messages_are_quoted_in_bounded_length():
    """An error may quote a value of any size, and one with a key: `quoted(value)` takes the place of `{value!r}`."""
    package = Path(amc_agents.__file__).parent
    wrong = {
        (str(path.relative_to(package)), value)
        for path in package.rglob("*.py")
        if "!r" in (code := path.read_text())
        for value in unbounded_quotes(code)
        if not value.startswith(HARMLESS.get(str(path.relative_to(package)), "\0"))
    }
    assert not wrong, "use amc_agents.quoting.quoted"


def test_unbounded_quotes_are_recognised():
    code = 'f"{a}{b!r}{c!r:.40}"; "{!r}"; "{d!r:.9}"\nclass A:\n    def __repr__(self):\n        return f"{e!r}"'
    assert sorted(unbounded_quotes(code)) == ["b", "c", "{!r}", "{d!r:"]


class Loud:
    def __repr__(self):
        return f"<{KEY}\x1b[2J{'y' * 10_000}>"


def test_any_value_is_quoted_shortly_masked_and_printable():
    assert quoted((1, "a", None, True)) == "(1, 'a', None, True)"
    assert quoted(10**5000).startswith("0x")
    for value in ("9" * 400, ["9" * 400] * 3, 10**5000, Loud(), [Loud()], {Loud(): Loud()}, ("\x1b" * 400,)):
        shown = quoted(value)
        assert len(shown) <= 83
        assert shown.isprintable()
        assert "0123456789" not in shown
