from queues import admitted, expired, next_job, schedule


def test_next_job():
    assert next_job([(1, 0, "a"), (3, 1, "b"), (2, 2, "c")]) == (3, 1, "b")


def test_next_of_equals():
    assert next_job([(3, 5, "late"), (3, 1, "early")]) == (3, 1, "early")


def test_no_job():
    assert next_job([]) is None


def test_one_worker():
    assert schedule([2, 3, 1], 1) == [2, 5, 6]


def test_two_workers():
    assert schedule([4, 1, 2, 2], 2) == [4, 1, 3, 5]


def test_expired():
    assert expired([(0, 1, "a"), (0, 4, "b"), (0, 6, "c")], 10, 6) == ["a"]


def test_admitted():
    assert admitted([0, 1, 2, 3], 2, 3) == [0, 1, 3]


def test_admitted_after_the_window():
    assert admitted([0, 5, 9, 10], 1, 5) == [0, 5, 10]
