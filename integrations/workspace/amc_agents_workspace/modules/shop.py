"""Prices and orders of a shop, in cents."""


def total(lines):
    """Add up (price, count) lines."""
    return sum(price * count for price, count in lines)


def discounted(cents, percent):
    """Take off a percentage, rounded down in the customer's favour."""
    return cents * (100 - percent) // 100


def shipping(cents, weight):
    """Return the cost of shipping: free from 5000 cents, else by weight in kilograms."""
    if cents >= 5000:
        return 0
    return 490 if weight <= 2 else 490 + (weight - 2) * 100


def refundable(order, today):
    """Return whether an order can be returned: paid, not used, and at most 14 days old."""
    return order["paid"] and not order["used"] and today - order["day"] <= 14
