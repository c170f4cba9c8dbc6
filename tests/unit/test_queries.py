"""Named queries: a file of statements by name, each with its promise."""

from __future__ import annotations

import pytest
from pfsup.config.errors import SchemaError
from pfsup.shared.db.queries import Queries, load_queries, parse_queries

TEXT = "-- name: one\n-- Does one.\nSELECT 1\nFROM @schema@.t;\n\n-- name: two\n-- Does two.\nSELECT %(a)s;\n"


def test_queries_are_bytes_by_name_with_the_schema_in_place():
    found = parse_queries(TEXT, filename="q.sql", schema="mine")
    assert found == {"one": b"SELECT 1\nFROM mine.t", "two": b"SELECT %(a)s"}


def test_queries_name_what_there_is_when_one_is_missing():
    with pytest.raises(KeyError, match=r"no query 'three' in q\.sql; there are one, two"):
        Queries("q.sql", parse_queries(TEXT, filename="q.sql", schema="mine"))["three"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT 1;\n" + TEXT, "before the first"),
        (TEXT + TEXT, "twice"),
        ("-- name: one\nSELECT 1;\n", "no line that promises"),
    ],
)
def test_queries_refuse_a_file_that_breaks_the_habit(text: str, said: str):
    with pytest.raises(ValueError, match=said):
        parse_queries(text, filename="q.sql", schema="mine")


def test_queries_refuse_a_schema_name_that_is_no_name():
    with pytest.raises(SchemaError):
        parse_queries(TEXT, filename="q.sql", schema='x"; DROP')


@pytest.mark.parametrize("package", ["pfsup.domains.dispatch", "pfsup.domains.housekeeping"])
def test_queries_of_each_domain_can_be_read(package: str):
    assert load_queries(package, "queries.sql", schema="pfsup")["version"].startswith(b"SELECT")


def test_part_that_several_files_share_stands_where_its_name_does():
    shared = load_queries("pfsup.domains", "finder.sql", schema="pfsup")
    found = load_queries("pfsup.domains.delivery", "queries.sql", schema="a", parts=shared, productflow="b")
    assert found["find"].endswith(shared["handed_out"])
    assert b"@" not in b"".join(found.values())
