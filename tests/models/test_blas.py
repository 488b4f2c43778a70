from __future__ import annotations

import threading

import pytest

from amc_agents.models.embedded.llama import _openblas, one_blas_thread


@pytest.fixture
def library():
    openblas = _openblas()
    if openblas is None:
        pytest.skip("numpy uses another BLAS here")
    before = openblas.get_threads()
    openblas.set_threads(2)
    yield openblas
    openblas.set_threads(before)


def test_one_thread_inside_and_the_previous_number_outside(library):
    if library.get_threads() != 2:
        pytest.skip("this OpenBLAS has a single thread")
    with one_blas_thread():
        assert library.get_threads() == 1
    assert library.get_threads() == 2


def test_the_last_of_overlapping_blocks_restores_the_threads(library):
    if library.get_threads() != 2:
        pytest.skip("this OpenBLAS has a single thread")
    inside, leave = threading.Event(), threading.Event()

    def other():
        with one_blas_thread():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with one_blas_thread():
        thread.start()
        inside.wait()
    assert library.get_threads() == 1
    leave.set()
    thread.join()
    assert library.get_threads() == 2
