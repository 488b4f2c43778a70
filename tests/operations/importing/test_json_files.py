import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amc_agents.errors import CheckpointError
from amc_agents.operations.importing import json_files
from amc_agents.operations.importing.json_files import json_paths, json_values

OBJECTS = st.lists(
    st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=20), st.lists(st.none()))),
    max_size=6,
)


def values(path):
    return [value.value for value in json_values(path)]


@pytest.mark.thorough
@given(objects=OBJECTS, indent=st.sampled_from([None, 1, 4]), ascii_only=st.booleans(), chunk=st.sampled_from([3, 64]))
def test_an_array_is_read_item_by_item(tmp_path_factory, objects, indent, ascii_only, chunk):
    path = tmp_path_factory.mktemp("json") / "array.json"
    text = json.dumps(objects, indent=indent, ensure_ascii=ascii_only)
    path.write_text(" \n" + text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_files, "_CHUNK", chunk)
        assert values(path) == objects


@pytest.mark.thorough
@given(objects=OBJECTS, indent=st.sampled_from([None, 1, "\t"]))
def test_objects_one_after_another_are_read(tmp_path_factory, objects, indent):
    path = tmp_path_factory.mktemp("json") / "objects.jsonl"
    path.write_text("\n".join(json.dumps(each, indent=indent) for each in objects), encoding="utf-8")
    assert values(path) == objects


def test_the_line_of_every_value_is_known(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('[\n {"a": 1},\n\n {"b":\n 2}, 3]')
    assert [(line, value) for line, value, _ in json_values(path)] == [(2, {"a": 1}), (4, {"b": 2}), (5, 3)]
    path.write_text('\n{"a": 1}\n\n{\n "b": 2\n}\n{"c": 3}')
    assert [(line, value) for line, value, _ in json_values(path)] == [(2, {"a": 1}), (4, {"b": 2}), (7, {"c": 3})]


def test_a_damaged_line_does_not_end_the_file(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": \n{"a": "\xff"}\n{"a": 2}\n{\n"b": 1')
    read = list(json_values(path))
    assert [value.value for value in read] == [{"a": 1}, None, None, {"a": 2}, None]
    assert [bool(value.error) for value in read] == [False, True, True, False, True]


@pytest.mark.parametrize("rest", ['{"a": ', "", "nonsense]"])
def test_a_damaged_array_ends_with_its_error(tmp_path, rest):
    path = tmp_path / "a.json"
    path.write_text('[{"a": 1},\n' + rest)
    first, damaged = json_values(path)
    assert first.value == {"a": 1}
    assert damaged.line == 2
    assert damaged.error.startswith("not JSON")


def test_an_empty_folder_and_a_missing_file_are_named(tmp_path):
    for missing in (tmp_path, tmp_path / "no.jsonl"):
        with pytest.raises(CheckpointError, match="no logs in"):
            json_paths(missing)
    (tmp_path / "b").mkdir()
    for name in ("b/2.json", "a.jsonl", "notes.txt"):
        (tmp_path / name).touch()
    assert [path.name for path in json_paths(tmp_path)] == ["a.jsonl", "2.json"]
