from graphs import degrees, distance, ordered, reachable

GRAPH = {"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}


def test_reachable():
    assert reachable(GRAPH, "b") == {"b", "d"}
    assert reachable(GRAPH, "a") == {"a", "b", "c", "d"}


def test_reachable_in_a_cycle():
    assert reachable({1: [2], 2: [1]}, 1) == {1, 2}


def test_distance():
    assert distance(GRAPH, "a", "b") == 1
    assert distance(GRAPH, "a", "d") == 2


def test_distance_to_itself():
    assert distance(GRAPH, "a", "a") == 0


def test_no_path():
    assert distance(GRAPH, "d", "a") == -1


def test_ordered():
    assert ordered(GRAPH) == ["a", "b", "c", "d"]
    assert ordered({"a": [], "b": ["a"]}) == ["b", "a"]


def test_cycle():
    assert ordered({"a": ["b"], "b": ["a"]}) is None


def test_degrees():
    assert degrees([("a", "b"), ("a", "c")]) == {"a": 2, "b": 1, "c": 1}
