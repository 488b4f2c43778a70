from geometry import area, cross, hull, inside


def test_left_turn():
    assert cross((0, 0), (2, 0), (2, 3)) == 6


def test_right_turn():
    assert cross((1, 1), (1, 3), (4, 3)) == -6


def test_straight():
    assert cross((1, 2), (2, 4), (3, 6)) == 0


def test_area():
    assert area([(0, 0), (4, 0), (4, 3)]) == 6


def test_area_clockwise():
    assert area([(1, 1), (1, 3), (4, 3), (4, 1)]) == 6


def test_inside():
    assert inside((1, 2), (0, 0), (3, 3))
    assert inside((0, 3), (0, 0), (3, 3))
    assert inside((3, 0), (0, 0), (3, 3))


def test_outside():
    assert not inside((4, 1), (0, 0), (3, 3))
    assert not inside((1, -1), (0, 0), (3, 3))


def test_hull():
    assert hull([(0, 0), (2, 0), (1, 1), (2, 2), (0, 2)]) == [(0, 0), (2, 0), (2, 2), (0, 2)]


def test_hull_without_points_on_edges():
    assert hull([(0, 0), (1, 0), (2, 0), (1, 2)]) == [(0, 0), (2, 0), (1, 2)]
