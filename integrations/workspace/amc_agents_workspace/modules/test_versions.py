from versions import bumped, compatible, newer, newest, parsed


def test_parsed():
    assert parsed("1.12.3") == (1, 12, 3)


def test_parsed_short():
    assert parsed("2") == (2, 0, 0)
    assert parsed("2.1") == (2, 1, 0)


def test_newer():
    assert newer("1.10.0", "1.9.9")
    assert not newer("1.9", "1.10")


def test_equal_is_not_newer():
    assert not newer("1.2", "1.2.0")


def test_compatible():
    assert compatible("1.3.0", "1.2.5")
    assert compatible("1.2.5", "1.2.5")


def test_incompatible():
    assert not compatible("2.0.0", "1.9.0")
    assert not compatible("1.2.4", "1.2.5")


def test_bumped_minor():
    assert bumped("1.2.3", 1) == "1.3.0"


def test_bumped_ends():
    assert bumped("1.2.3", 0) == "2.0.0"
    assert bumped("1.2.3", 2) == "1.2.4"


def test_newest():
    assert newest(["1.2", "1.10", "1.9"]) == "1.10"
    assert newest([]) is None
