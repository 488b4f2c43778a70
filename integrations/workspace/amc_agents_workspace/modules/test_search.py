from search import largest, median, merge, position


def test_position():
    assert [position([1, 3, 5, 8], value) for value in (1, 3, 5, 8)] == [0, 1, 2, 3]


def test_position_of_the_only_value():
    assert position([4], 4) == 0


def test_absent():
    assert position([1, 3, 5], 4) == -1
    assert position([], 1) == -1


def test_merge():
    assert merge([1, 4, 6], [2, 3, 7]) == [1, 2, 3, 4, 6, 7]


def test_merge_is_stable():
    assert [str(value) for value in merge([1], [1.0])] == ["1", "1.0"]


def test_merge_with_nothing():
    assert merge([], [1]) == [1]
    assert merge([1], []) == [1]


def test_largest():
    assert largest([3, 9, 1, 7], 2) == [9, 7]


def test_median_of_odd():
    assert median([5, 1, 3]) == 3


def test_median_of_even():
    assert median([4, 1, 3, 2]) == 2.5
