"""Bank accounts as a dict of balances, in cents."""


def transfer(balances, source, target, cents):
    """Move money, and return whether it was possible."""
    if cents <= 0 or balances.get(source, 0) < cents:
        return False
    balances[source] -= cents
    balances[target] = balances.get(target, 0) + cents
    return True


def interest(cents, percent, years):
    """Add yearly compound interest, rounded down each year."""
    for _ in range(years):
        cents += cents * percent // 100
    return cents


def fee(cents, premium):
    """Return the fee of a transfer: 1 percent, at least 50 and at most 1000 cents; premium accounts pay none."""
    return 0 if premium else min(max(cents // 100, 50), 1000)


def settle(debts):
    """Return what each person receives (positive) or pays, from (debtor, creditor, cents) entries."""
    net = {}
    for debtor, creditor, cents in debts:
        net[debtor] = net.get(debtor, 0) - cents
        net[creditor] = net.get(creditor, 0) + cents
    return {person: cents for person, cents in net.items() if cents != 0}
