from shop import discounted, refundable, shipping, total


def test_total():
    assert total([(100, 2), (50, 3)]) == 350


def test_total_of_nothing():
    assert total([]) == 0


def test_discounted():
    assert discounted(1000, 10) == 900


def test_discounted_rounds_down():
    assert discounted(99, 50) == 49


def test_free_shipping():
    assert shipping(5000, 30) == 0


def test_light_shipping():
    assert shipping(4999, 1) == 490
    assert shipping(4999, 2) == 490


def test_heavy_shipping():
    assert shipping(1000, 5) == 790


def test_refundable():
    assert refundable({"paid": True, "used": False, "day": 1}, 15)


def test_too_late():
    assert not refundable({"paid": True, "used": False, "day": 1}, 16)


def test_used_or_unpaid():
    assert not refundable({"paid": True, "used": True, "day": 1}, 2)
    assert not refundable({"paid": False, "used": False, "day": 1}, 2)
