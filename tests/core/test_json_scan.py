"""JSON two readers could take for different things is refused, with its place; everything else passes as it is."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_core import json_scan
from ninfer_core.errors import ApiError


def refusal(body: bytes, **settings: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        json_scan.scan(body, **settings)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b'{"a":1,"a":1}', "a", 'The request body has the member "a" twice.'),
        (b'{"m":[{"r":1},{"r":1,"r":2}]}', "m[1].r", "'m[1]' has the member \"r\" twice."),
        (b'{"m":[[0,1,2,{"x":{"q":1,"\\u0071":2}}]]}', "m[0][3].x.q", "'m[0][3].x' has the member \"q\" twice."),
        (b'{"":1,"":2}', "", 'The request body has the member "" twice.'),
        (b'[{"a":{}},{"a":[],"b":0,"a":0}]', "[1].a", "'[1]' has the member \"a\" twice."),
        (b'{"caf\\u00e9":1,"caf\xc3\xa9":2}', "café", 'The request body has the member "café" twice.'),
    ],
    ids=["top", "message", "escaped", "no-name", "later", "spelled-otherwise"],
)
def test_a_member_that_comes_twice_is_named_with_its_place(body, param, message):
    error = refusal(body)
    assert (error.code, error.param, error.message) == ("duplicate_member", param, message)
    with pytest.raises(ApiError, match="twice"):
        json_scan.check(body)


def test_one_name_in_two_objects_is_no_duplicate():
    for body in (b'[{"a":1},{"a":1}]', b'{"a":{"a":{"a":1}},"b":{"a":1}}', b'{"a":1,"A":1,"a ":1}'):
        json_scan.check(body)
        json_scan.scan(body)


def test_a_long_name_is_cut():
    name = b"n" * 5000
    error = refusal(b'{"' + name + b'":1,"' + name + b'":2}')
    assert len(error.message) < 200
    assert error.param is not None
    assert len(error.param) < 100


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(b'{"x":NaN}', "byte 5", id="probe-NaN"),
        pytest.param(b'{"x":-Infinity}', "byte 5", id="probe-Infinity"),
        pytest.param(b'\xef\xbb\xbf{"x":1}', "byte 0", id="probe-byte-order-mark"),
        pytest.param(b'{"x":"a\\ud800b"}', "byte 7: half a surrogate pair", id="probe-lone-surrogate"),
        pytest.param(b'{"x":"\\ud83d\\u0041"}', "byte 6: half a surrogate pair", id="probe-surrogate-without-second"),
        pytest.param(b'{"\\udc00":1}', "byte 2: half a surrogate pair", id="probe-lone-surrogate-in-a-name"),
        pytest.param(b'{"x":"\xff"}', "not valid UTF-8", id="probe-utf8"),
        pytest.param(b'{"x":"\xed\xa0\x80"}', "not valid UTF-8", id="probe-utf8-surrogate"),
        pytest.param(b'{"x":"\xc3', "not valid UTF-8", id="probe-utf8-cut"),
        pytest.param(b"[" * 100_000, "nested too deeply", id="probe-depth"),
        pytest.param(b'{"a":' * 2000 + b"1" + b"}" * 2000, "nested too deeply", id="probe-depth-of-objects"),
        pytest.param(b'{"x":"a\x01"}', "byte 7", id="control-character"),
        pytest.param(b'{"x":"\\q"}', "byte 6", id="unknown-escape"),
        pytest.param(b'{"x":01}', "byte 6", id="leading-zero"),
        pytest.param(b'{"x":1,}', "byte 7", id="trailing-comma"),
        pytest.param(b"[1,]", "byte 3", id="trailing-comma-in-array"),
        pytest.param(b'{"x":1]', "byte 6", id="wrong-closer"),
        pytest.param(b'{"x":1} {', "byte 8", id="more-behind"),
        pytest.param(b'{"x":[1,2', "ends early", id="open-array"),
        pytest.param(b'{"x":"abc', "ends early", id="open-string"),
        pytest.param(b"", "ends early", id="empty"),
        pytest.param(b"'x'", "byte 0", id="other-quotes"),
    ],
)
def test_what_is_no_json_is_refused_with_its_byte(body, message):
    error = refusal(body)
    assert error.code == "invalid_json"
    assert message in error.message


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"1.5E400", b"9" * 5000, b"-" + b"9" * 4301])
def test_a_number_that_is_none_is_refused_even_where_nobody_reads_it(number):
    body = b'{"a":[true,{"skipped":' + number + b"}]}"
    error = refusal(body)
    assert (error.code, error.param) == ("invalid_value", "a[1].skipped")
    with pytest.raises(ApiError, match="must be a number that fits"):
        json_scan.check(body)


def test_long_strings_are_listed_but_not_names():
    text = b'{"' + b"k" * 50 + b'":["short","' + b"x" * 20 + b'",{"y":"' + b"\\n" * 15 + b'"}]}'
    found = json_scan.scan(text, span_bytes=20)
    assert [text[begin:end] for begin, end in found.spans] == [b'"' + b"x" * 20 + b'"', b'"' + b"\\n" * 15 + b'"']
    assert (found.values, found.containers) == (6, 3)


@pytest.mark.parametrize(
    "body",
    [b"[" + b"1," * 5000 + b"1]", b'["x"' + b',"x"' * 5000 + b"]", b"[[]" + b",[]" * 200 + b"]"],
    ids=["numbers", "strings", "arrays"],
)
def test_a_text_of_too_many_values_is_not_read_on(body):
    error = refusal(body, bounds=json_scan.Bounds(values=900, containers=100))
    assert error.code == "request_too_complex"
    json_scan.scan(body, bounds=json_scan.Bounds(values=6000, containers=300))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


@given(json_values, st.sampled_from([None, 1, "\t", "\r\n "]), st.booleans())
def test_any_json_passes_and_is_counted(value, indent, ascii_only):
    body = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    found = json_scan.scan(body)
    json_scan.check(body)
    assert (found.values, found.containers) == count(value)


def count(value: Any) -> tuple[int, int]:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    pairs = [count(item) for item in inner]
    return 1 + sum(v for v, _ in pairs), isinstance(value, (dict, list)) + sum(c for _, c in pairs)


class Refused(Exception):
    pass


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise Refused
    return dict(pairs)


def finite(spelled: str) -> float:
    if math.isinf(float(spelled)):
        raise Refused
    return float(spelled)


def constant(_: str) -> None:
    raise Refused


def reference(body: bytes) -> bool:
    """Whether Python's reader, told to be strict, takes the text, and it is text throughout."""
    try:
        text = body.decode()
        value = json.loads(text, object_pairs_hook=unique, parse_float=finite, parse_constant=constant)
        json.dumps(value, ensure_ascii=False).encode()
    except (Refused, ValueError):
        return False
    return not text.startswith("\ufeff")


def taken(body: bytes) -> bool:
    try:
        json_scan.scan(body)
    except ApiError:
        return False
    return True


PIECES = ["{", "}", "[", "]", ",", ":", '"', '"a"', '"b"', '{"a":1', "1", "-", "0", ".5", "e9", "e999", "true", "nul"]
PIECES += ["null", " ", "\n", "\\", "\\u0061", '"\\ud83d\\ude00"', '"\\ud83d"', "NaN", "é", "\x01"]
near_json = st.lists(st.sampled_from(PIECES), max_size=9).map(lambda parts: "".join(parts).encode())


@settings(max_examples=400)
@given(near_json | st.binary(max_size=12) | st.tuples(near_json, near_json).map(lambda ab: b"[" + b",".join(ab) + b"]"))
def test_the_scan_agrees_with_a_strict_reader(body):
    assert taken(body) == reference(body)
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    # what msgspec takes, the quick check and the scan judge alike
    try:
        json_scan.check(body)
    except ApiError:
        assert not taken(body)
    else:
        assert taken(body)


def test_objects_and_arrays_beyond_the_bound_are_refused_and_brackets_in_text_are_none():
    most = json_scan.MAX_CONTAINERS
    json_scan.check_containers(b"[" + b"{}," * (most - 2) + b"{}]")
    with pytest.raises(ApiError) as caught:
        json_scan.check_containers(b"[" + b"{}," * most + b"{}]")
    assert caught.value.code == "request_too_complex" and str(most) in caught.value.message
    json_scan.check_containers(b'["' + b"[{" * most + b'"]')
