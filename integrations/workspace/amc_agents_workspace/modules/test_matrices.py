from matrices import determinant, product, trace, transposed


def test_transposed():
    assert transposed([[1, 2, 3], [4, 5, 6]]) == [[1, 4], [2, 5], [3, 6]]


def test_product():
    assert product([[1, 2], [3, 4]], [[5, 6], [7, 8]]) == [[19, 22], [43, 50]]


def test_product_of_row_and_column():
    assert product([[1, 2]], [[3], [4]]) == [[11]]


def test_trace():
    assert trace([[1, 2], [3, 4]]) == 5


def test_trace_of_three():
    assert trace([[1, 0, 0], [0, 2, 0], [0, 0, 4]]) == 7


def test_determinant_of_one():
    assert determinant([[7]]) == 7


def test_determinant_of_two():
    assert determinant([[1, 2], [3, 4]]) == -2


def test_determinant_of_three():
    assert determinant([[2, 0, 1], [1, 3, 2], [1, 1, 4]]) == 18
