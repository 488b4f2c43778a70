from texts import caesar, columns, shortened, wrapped


def test_wrapped():
    assert wrapped("to be or not", 6) == ["to be", "or not"]


def test_wrapped_exactly():
    assert wrapped("ab cd ef", 5) == ["ab cd", "ef"]
    assert wrapped("ab cd ef", 4) == ["ab", "cd", "ef"]


def test_long_word():
    assert wrapped("a incredibly b", 3) == ["a", "incredibly", "b"]


def test_not_shortened():
    assert shortened("abcde", 5) == "abcde"


def test_shortened():
    assert shortened("abcdefgh", 6) == "abc..."


def test_columns():
    assert columns([["a", "bb", "c"], ["ddd", "e", "f"]]) == ["a    bb  c", "ddd  e   f"]


def test_caesar():
    assert caesar("abc", 1) == "bcd"


def test_caesar_wraps():
    assert caesar("xyz", 3) == "abc"
    assert caesar("abc", -3) == "xyz"


def test_caesar_leaves_others():
    assert caesar("az Az!", 2) == "cb Ab!"
