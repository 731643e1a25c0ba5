import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.text.tojson import to_json

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=10,
)


@given(values, st.sampled_from([None, 0, 2, "\t"]), st.booleans(), st.booleans())
def test_the_text_is_that_of_the_standard_library(value, indent, ensure_ascii, sort_keys):
    expected = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)
    assert to_json(value, indent=indent, ensure_ascii=ensure_ascii, sort_keys=sort_keys) == expected


def test_members_keep_their_order_and_characters_their_form():
    assert to_json({"b": "é<&'\u2028", "a": 1.0}) == '{"b": "é<&\'\u2028", "a": 1.0}'


def test_separators_can_be_chosen():
    assert to_json([1, {"a": 2}], separators=(",", ":")) == '[1,{"a":2}]'


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}])
def test_what_json_cannot_say_is_refused(value):
    with pytest.raises(TypeError):
        to_json(value)
