"""Version numbers such as 1.12.3."""


def parsed(text):
    """Return the three numbers of a version; missing ones are 0."""
    numbers = [int(part) for part in text.split(".")]
    return tuple(numbers + [0] * (3 - len(numbers)))


def newer(a, b):
    """Return whether version a is newer than version b."""
    return parsed(a) > parsed(b)


def compatible(installed, wanted):
    """Return whether an installed version can replace a wanted one: the same major number, and not older."""
    return parsed(installed)[0] == parsed(wanted)[0] and not newer(wanted, installed)


def bumped(text, part):
    """Raise the major (0), minor (1) or patch number (2), and reset those after it."""
    numbers = parsed(text)
    return ".".join(str(n + 1 if i == part else n if i < part else 0) for i, n in enumerate(numbers))


def newest(versions):
    """Return the newest version, or None."""
    return max(versions, key=parsed) if versions else None
