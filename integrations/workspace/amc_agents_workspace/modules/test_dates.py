from dates import day_of_year, days_in, leap, weekday


def test_leap():
    assert leap(2024)
    assert not leap(2023)


def test_leap_centuries():
    assert leap(2000)
    assert not leap(1900)


def test_days_in_february():
    assert days_in(2, 2024) == 29
    assert days_in(2, 2023) == 28


def test_days_in_other_months():
    assert [days_in(month, 2023) for month in (1, 4, 6, 9, 11, 12)] == [31, 30, 30, 30, 30, 31]


def test_first_day():
    assert day_of_year(1, 1, 2023) == 1


def test_last_day():
    assert day_of_year(31, 12, 2023) == 365
    assert day_of_year(31, 12, 2024) == 366


def test_weekday():
    assert weekday(1, 1, 2024) == 0
    assert weekday(4, 7, 1976) == 6


def test_weekday_of_centuries():
    assert weekday(1, 3, 2000) == 2
    assert weekday(1, 3, 1900) == 3
