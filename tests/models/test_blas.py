from __future__ import annotations

import threading

import pytest

from amc_agents.models.embedded.blas import _openblas, one_blas_thread


@pytest.fixture
def library():
    found = _openblas()
    if found is None:
        pytest.skip("numpy uses another BLAS here")
    before = found.get_threads()
    found.set_threads(2)
    yield found
    found.set_threads(before)


def test_one_thread_inside_and_as_before_outside(library):
    if library.get_threads() != 2:
        pytest.skip("this OpenBLAS has one thread only")
    with one_blas_thread():
        assert library.get_threads() == 1
    assert library.get_threads() == 2


def test_overlapping_users_restore_what_was_before_all_of_them(library):
    if library.get_threads() != 2:
        pytest.skip("this OpenBLAS has one thread only")
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
