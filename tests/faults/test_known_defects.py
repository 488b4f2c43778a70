"""Defects of failing servers, worlds and processes that the library once had: a test holds each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
HELD_BY = {
    "on_critic_error covers whatever a critic raises or returns":
        "population/test_weighing.py::test_any_failure_of_a_critic_is_a_critic_error",
    "no earlier values where the critic failed":
        "population/test_weighing.py::test_values_are_nan_after_the_critic_failed",
    "a dead server costs no call of the policy":
        "runtime/test_critic_connection.py::test_a_dead_server_costs_no_call_of_the_policy",
    "worlds left open by a reader":
        "population/test_open_run.py::test_a_reader_that_leaves_the_sync_stream_closes_every_world",
    "worlds left open by the recursion limit":
        "population/test_open_run.py::test_the_outer_recursion_limit_closes_every_world",
    "worlds left open by an interrupt":
        "population/test_open_run.py::test_an_interrupt_of_the_outer_graph_closes_every_world",
    "worlds left open by a failing fork":
        "population/test_open_run.py::test_a_failing_fork_closes_the_earlier_worlds",
    "worlds left open by a cancellation":
        "population/test_open_run.py::test_a_run_cancelled_at_any_time_closes_every_world",
    "a failing close lost the run":
        "population/test_open_run.py::test_a_failing_close_is_only_a_note",
    "a hung particle holds the run":
        "population/test_time_limits.py::test_a_hanging_particle_fails_and_the_run_continues",
    "a hung critic holds the run":
        "population/test_time_limits.py::test_a_hanging_critic_is_a_critic_error",
    "a time-out bounds each read only":
        "critics/server/test_http.py::test_the_time_out_holds_for_the_whole_request",
    "Ctrl-C does not end the process":
        "concurrency/test_background.py::test_one_ctrl_c_ends_a_process_whose_critic_hangs",
    "verdict: asks for ever":
        "critics/verdict/test_verdict.py::test_every_second_request_may_be_lost",
    "workers survive kill -9 of a bench":
        "bench/test_workers.py::test_workers_end_with_a_bench_that_is_killed_and_a_second_bench_is_refused_while_it_runs",
    "two processes on one folder":
        "test_files.py::test_two_writers_of_one_result_are_refused_and_nothing_stays_behind",
    "disk full":
        "test_files.py::test_a_full_disk_leaves_the_old_file_and_nothing_else",
    "damaged checkpoints":
        "critics/test_damaged_files.py::test_a_damaged_checkpoint_is_refused",
    "damaged weights":
        "critics/test_damaged_files.py::test_truncated_weights_are_a_named_error",
    "answers of another type":
        "critics/server/test_hostile_servers.py::test_a_changed_value_gives_numbers_or_a_named_error",
    "deep JSON, odd charsets":
        "critics/server/test_hostile_servers.py::test_invalid_json_is_a_named_error",
    "huge integers":
        "critics/server/test_http.py::test_a_huge_integer_becomes_infinite_like_a_huge_float",
    "embeddings without usage":
        "critics/goal/test_goal.py::test_an_answer_without_valid_usage_counts_as_missing",
    "sync calls hang after os.fork":
        "concurrency/test_background.py::test_a_forked_process_makes_sync_calls_too",
    "a changed model after a lost connection":
        "critics/value/test_pooling_restarts.py::test_another_model_after_the_restart_is_an_error",
    "a changed model behind a classifier":
        "critics/classifier/test_classifier.py::test_another_model_after_a_lost_connection_is_noticed",
    "answers in another order":
        "critics/goal/test_goal.py::test_batches_of_a_server_may_have_rows_in_any_order",
    "requests of a role that failed were not counted":
        "runtime/test_role_answers.py::test_a_failed_request_counts_as_a_call_without_a_report",
    "requests of a cancelled run were not counted":
        "runtime/test_metering.py::test_requests_of_a_cancelled_run_are_counted",
}  # fmt: skip
"""Defect -> file and test."""


@pytest.mark.parametrize("place", HELD_BY.values(), ids=list(HELD_BY))
def test_the_defect_is_held(place):
    file, _, name = place.partition("::")
    assert re.search(rf"^(async )?def {name}\(", (TESTS / file).read_text(), re.MULTILINE)
