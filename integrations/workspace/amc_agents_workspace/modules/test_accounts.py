from accounts import fee, interest, settle, transfer


def test_transfer():
    balances = {"a": 100, "b": 5}
    assert transfer(balances, "a", "b", 30)
    assert balances == {"a": 70, "b": 35}


def test_transfer_of_everything_to_a_new_account():
    balances = {"a": 100}
    assert transfer(balances, "a", "b", 100)
    assert balances == {"a": 0, "b": 100}


def test_refused_transfer():
    balances = {"a": 10}
    assert not transfer(balances, "a", "b", 11)
    assert not transfer(balances, "a", "b", 0)
    assert not transfer(balances, "c", "a", 1)
    assert balances == {"a": 10}


def test_interest():
    assert interest(1000, 10, 2) == 1210


def test_interest_rounds_down():
    assert interest(199, 1, 1) == 200


def test_no_years():
    assert interest(500, 10, 0) == 500


def test_fee():
    assert fee(20000, False) == 200


def test_fee_limits():
    assert fee(100, False) == 50
    assert fee(900000, False) == 1000


def test_premium_fee():
    assert fee(20000, True) == 0


def test_settle():
    assert settle([("a", "b", 30), ("b", "c", 10)]) == {"a": -30, "b": 20, "c": 10}


def test_settled():
    assert settle([("a", "b", 30), ("b", "a", 30)]) == {}
