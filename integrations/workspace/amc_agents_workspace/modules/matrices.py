"""Matrices as lists of rows."""


def transposed(matrix):
    """Exchange rows and columns."""
    return [list(column) for column in zip(*matrix)]


def product(a, b):
    """Multiply two matrices."""
    return [[sum(x * y for x, y in zip(row, column)) for column in transposed(b)] for row in a]


def trace(matrix):
    """Add up the diagonal."""
    return sum(matrix[i][i] for i in range(len(matrix)))


def determinant(matrix):
    """Expand along the first row."""
    if len(matrix) == 1:
        return matrix[0][0]
    value = 0
    for column in range(len(matrix)):
        minor = [row[:column] + row[column + 1 :] for row in matrix[1:]]
        sign = 1 if column % 2 == 0 else -1
        value += sign * matrix[0][column] * determinant(minor)
    return value
