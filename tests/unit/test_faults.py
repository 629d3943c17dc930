"""Whose fault an error of the database is, by its SQLSTATE."""

from __future__ import annotations

import signal

import psycopg
import pytest
from django.db import DatabaseError

from pgembed_django.core import faults
from pgembed_django.core.faults import Fault

FAULTS = {
    "57014": Fault.TOO_SLOW,
    "55P03": Fault.TOO_SLOW,
    "25P04": Fault.TOO_SLOW,  # and the session is gone
    "25P03": Fault.OUTAGE,
    "57P01": Fault.OUTAGE,
    "08006": Fault.OUTAGE,
    "53300": Fault.OUTAGE,
    "53100": Fault.OUTAGE,
    "58030": Fault.OUTAGE,
    "25006": Fault.OUTAGE,
    "42703": Fault.SCHEMA,
    "42P01": Fault.SCHEMA,
    "42501": Fault.SCHEMA,
    "22P02": Fault.VALUE,
    "XX001": Fault.VALUE,
    "53400": Fault.VALUE,
    "XX000": Fault.VALUE,
    "26000": Fault.OUTAGE,
    "40001": Fault.PASSING,
    "40P01": Fault.PASSING,
    "55006": Fault.PASSING,
    "57000": Fault.PASSING,
    "3F000": Fault.SCHEMA,
    "P0001": Fault.OTHER,
    "23505": Fault.OTHER,
    "23502": Fault.SCHEMA,
}


def raised(state: str, message: str = "it is wrong") -> DatabaseError:
    """An error as Django raises it."""
    error = DatabaseError(message)
    error.__cause__ = psycopg.errors.lookup(state)(message)
    return error


@pytest.mark.parametrize("state", FAULTS)
def test_whose_fault_an_error_is(state):
    assert faults.of(raised(state)) is FAULTS[state]


@pytest.mark.parametrize(
    "message",
    [
        "cache lookup failed for index 16500",
        "could not open relation with OID 16500",
        "tuple concurrently updated",
        "tuple concurrently deleted",
    ],
)
def test_what_is_exchanged_under_a_statement_is_nobodys_fault(message):
    assert faults.of(raised("XX000", message)) is Fault.PASSING


def test_what_is_wrong_with_our_own_tables_is_no_specs():
    error = raised("42P01", 'relation "pgembed_staging" does not exist\nLINE 1: SELECT …')

    assert faults.of(error) is Fault.OURS


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("42P01", 'relation "tenant.pgembed_staging" does not exist'),
        ("42P01", "Relation »pgembed_staging« existiert nicht"),
        ("42501", "permission denied for table pgembed_staging"),
        ("42501", "permission denied for function pgembed_job_is_possible_v1"),
        ("42883", "function pgembed_job_is_possible_v1(pgembed_job) does not exist"),
        ("42703", "column pgembed_job.crashes does not exist"),
        ("42703", 'column "was_cut" of relation "pgembed_staging" does not exist'),
    ],
)
def test_however_the_server_names_them(state, message):
    assert faults.of(raised(state, message)) is Fault.OURS


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("42P01", 'relation "blog_pgembed_note" does not exist'),
        ("42P01", 'relation "pgembed_notes" does not exist'),
        ("42P01", 'relation "notes of pgembed_job" does not exist'),
        ("42501", "permission denied for table pgembed_notes"),
        ("42501", "permission denied for function pgembed_score"),
        ("42703", "column blog_note.pgembed_score does not exist"),
        ("42703", "column blog_note.pgembed_job does not exist"),
        ("42703", 'column "pgembed_score" of relation "blog_note" does not exist'),
    ],
)
def test_a_projects_own_name_may_begin_like_ours(state, message):
    assert faults.of(raised(state, message)) is Fault.SCHEMA


def test_a_statement_that_names_our_tables_is_not_what_is_wrong():
    error = raised("42703", 'column "body" does not exist\nLINE 1: … FROM pgembed_staging')

    assert faults.of(error) is Fault.SCHEMA


def test_an_error_that_no_server_has_told_is_a_lost_connection():
    error = DatabaseError("the connection is closed")
    error.__cause__ = psycopg.OperationalError("the connection is closed")

    assert faults.of(error) is Fault.OUTAGE


def test_ctrl_c_is_an_interruption_and_what_code_raises_itself_is_not():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt) as pressed:
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    with pytest.raises(KeyboardInterrupt) as raised:
        raise KeyboardInterrupt

    assert faults.is_interruption(pressed.value)
    assert not faults.is_interruption(raised.value)
