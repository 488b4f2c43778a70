from intervals import gaps, length, merged, overlap


def test_overlap():
    assert overlap((1, 5), (3, 8)) == (3, 5)
    assert overlap((3, 8), (1, 5)) == (3, 5)


def test_overlap_of_a_point():
    assert overlap((1, 3), (3, 4)) == (3, 3)


def test_no_overlap():
    assert overlap((1, 2), (3, 4)) is None


def test_merged_overlap():
    assert merged([(4, 9), (1, 5)]) == [(1, 9)]


def test_merged_neighbours():
    assert merged([(1, 2), (3, 4), (6, 7)]) == [(1, 4), (6, 7)]


def test_merged_inside():
    assert merged([(1, 9), (2, 3)]) == [(1, 9)]


def test_length():
    assert length([(1, 3)]) == 3
    assert length([(1, 3), (2, 5), (10, 10)]) == 6


def test_gaps():
    assert gaps([(1, 2), (5, 6), (8, 9)]) == [(3, 4), (7, 7)]


def test_no_gaps():
    assert gaps([(1, 2), (3, 4)]) == []
