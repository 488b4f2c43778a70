"""Boards of games, as lists of rows."""


def neighbours(row, column, height, width):
    """Return the cells around a cell."""
    return [
        (r, c)
        for r in range(max(row - 1, 0), min(row + 2, height))
        for c in range(max(column - 1, 0), min(column + 2, width))
        if (r, c) != (row, column)
    ]


def mines_around(board, row, column):
    """Count the mines around a cell."""
    return sum(board[r][c] == "*" for r, c in neighbours(row, column, len(board), len(board[0])))


def next_generation(board):
    """Play one generation of Life, with # for a living cell."""
    result = []
    for r, row in enumerate(board):
        line = ""
        for c, cell in enumerate(row):
            alive = sum(board[i][j] == "#" for i, j in neighbours(r, c, len(board), len(row)))
            line += "#" if alive == 3 or (cell == "#" and alive == 2) else "."
        result.append(line)
    return result


def winner(board):
    """Return the player with a full row, column or diagonal in noughts and crosses, or None."""
    size = len(board)
    lines = [*board, *zip(*board)]
    lines += [[board[i][i] for i in range(size)], [board[i][size - 1 - i] for i in range(size)]]
    for line in lines:
        if line[0] != "." and all(cell == line[0] for cell in line):
            return line[0]
    return None
