"""Every promise of the contract that is written down has a test, or says why not."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("contract_trace", Path(__file__).with_name("contract_trace.py"))
assert spec is not None and spec.loader is not None
trace = importlib.util.module_from_spec(spec)
spec.loader.exec_module(trace)

SECTIONS = trace.sections()
TESTS = trace.marks(trace.test_files())


def test_an_id_stands_once():
    ids = [id for section in SECTIONS for id in section.gists]
    assert sorted(ids) == sorted(set(ids))


def test_no_test_names_a_promise_that_is_not_listed():
    known = {id for section in SECTIONS for id in section.gists}
    assert {id: tests for id, tests in TESTS.items() if id not in known} == {}


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
def test_every_promise_has_a_test_or_a_reason(section):
    untested = [id for id in section.gists if id not in TESTS and not section.reasons.get(id)]
    assert untested == []
    assert [id for id in section.reasons if id in TESTS or id not in section.gists] == [], "a reason nobody needs"


def test_the_page_is_what_marks_and_lists_say():
    assert trace.PAGE.read_text(encoding="utf-8") == trace.document(SECTIONS, TESTS), "run `make docs`"


def test_marks_are_found_on_functions_classes_cases_and_modules():
    text = """
pytestmark = pytest.mark.contract("a")
class TestIt:
    @pytest.mark.contract("b", "c")
    def test_one(self): ...
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.contract("d"))])
def test_two(x): ...
"""
    assert list(trace.marks_in(ast.parse(text))) == [
        ("a", ""),
        ("b", "TestIt::test_one"),
        ("c", "TestIt::test_one"),
        ("d", "test_two"),
    ]
