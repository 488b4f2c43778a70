"""The Gregorian calendar."""


def leap(year):
    """Return whether a year has 366 days."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_in(month, year):
    """Count the days of a month."""
    if month == 2:
        return 29 if leap(year) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def day_of_year(day, month, year):
    """Number the days of a year from 1."""
    return day + sum(days_in(earlier, year) for earlier in range(1, month))


def weekday(day, month, year):
    """Return the weekday, 0 for Monday."""
    before = year - 1
    days = 365 * before + before // 4 - before // 100 + before // 400
    return (days + day_of_year(day, month, year) - 1) % 7
