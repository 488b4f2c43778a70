import pytest

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


def test_a_large_or_deep_value_is_shown_in_part():
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    assert quoted(deep) == "[[[[...]]]]"
    assert quoted(dict.fromkeys(range(100), 0)) == "{0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: 0, 6: 0, 7: 0, ...: ...}"
    assert len(quoted(["y" * 10_000_000] * 1000)) == 203
    assert listed(range(10)) == "0, 1, 2, 3, 4, 5, 6, 7 and 2 more"
