from boards import mines_around, neighbours, next_generation, winner


def test_neighbours_in_a_corner():
    assert neighbours(0, 0, 3, 3) == [(0, 1), (1, 0), (1, 1)]
    assert neighbours(2, 2, 3, 3) == [(1, 1), (1, 2), (2, 1)]


def test_neighbours_in_the_middle():
    assert len(neighbours(1, 1, 3, 3)) == 8


def test_mines_around():
    board = ["*..", ".*.", "..*"]
    assert mines_around(board, 0, 1) == 2
    assert mines_around(board, 1, 1) == 2
    assert mines_around(board, 0, 0) == 1


def test_blinker():
    assert next_generation([".#.", ".#.", ".#."]) == ["...", "###", "..."]


def test_block():
    assert next_generation(["##.", "##.", "..."]) == ["##.", "##.", "..."]


def test_overcrowded():
    assert next_generation(["###", "###", "###"]) == ["#.#", "...", "#.#"]


def test_winning_row_and_column():
    assert winner(["xxx", "oo.", "..."]) == "x"
    assert winner(["xo.", "xo.", ".o."]) == "o"


def test_winning_diagonals():
    assert winner(["xo.", "ox.", "..x"]) == "x"
    assert winner(["x.o", "xo.", "o.x"]) == "o"


def test_nobody_wins():
    assert winner(["xo.", ".x.", "..o"]) is None
