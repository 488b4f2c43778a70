"""Lines and words."""


def wrapped(text, width):
    """Break a text into lines of at most `width` characters."""
    lines = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += " " + word
        else:
            lines.append(word)
    return lines


def shortened(text, width):
    """Cut a text to `width` characters and mark the cut."""
    return text if len(text) <= width else text[: width - 3] + "..."


def columns(rows):
    """Align the cells of a table to the left."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def caesar(text, shift):
    """Shift the lower-case letters, and leave the others."""
    return "".join(chr((ord(c) - 97 + shift) % 26 + 97) if "a" <= c <= "z" else c for c in text)
