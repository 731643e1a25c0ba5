import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import ApiError
from ninfer_core.text.json_text import MAX_DEPTH, NotJson, read, read_object
from ninfer_core.text.prompt_json import PromptJson
from ninfer_core.text.provenance import Marks, Spellings
from ninfer_core.text.tojson import to_json

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=12,
)


@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_it_reads_what_the_standard_library_writes(value, ascii_only, indent):
    assert read(json.dumps(value, ensure_ascii=ascii_only, indent=indent)) == value


numbers = st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,20})?([eE][-+]?[0-9]{1,2})?", fullmatch=True)


@given(numbers, numbers)
def test_a_number_prints_as_it_was_written(first, second):
    written = f'{{"a": [{first}, true], "b": {second}}}'
    assert to_json(read(written)) == written


SPELLED = ["1.0", "1E5", "1e+5", "-0", "-0.0", "123456789012345678901234567890", "0.10", "1e-999", "2.50E-3", "1" * 400]


@pytest.mark.parametrize("number", SPELLED, ids=[number[:32] for number in SPELLED])
def test_a_number_with_a_spelling_of_its_own_is_a_number_still(number):
    value = read(number)
    assert value == (int(number) if number.lstrip("-").isdecimal() else float(number))
    assert value + 1 == float(number) + 1 or isinstance(value, int)
    assert (str(value), to_json(value), to_json([value])) == (number, number, f"[{number}]")


REFUSED = {
    "vllm-55497-nan": "NaN",
    "vllm-55497-infinity": '{"a": -Infinity}',
    "vllm-55497-out-of-range": "[1e999]",
    "vllm-55495-half-a-pair": '{"a": "\\ud83d"}',
    "vllm-55495-half-a-pair-in-a-name": '{"\\ude00": 1}',
    "vllm-55495-half-a-pair-as-it-is": '"\ud83d"',
    "vllm-55497-five-thousand-digits": "9" * 5000,
    "member-named-twice": '{"a": 1, "b": {"c": 2, "c": 3}}',
    "same-name-escaped": '{"a": 1, "\\u0061": 2}',
    "deep": "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
    "deeper-than-the-stack": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "unclosed-and-deep": "[" * 100_000,
    "empty": "",
    "white-space": " \n",
    "cut-short": '{"a": ',
    "trailing-comma": "[1,]",
    "two-values": "1 2",
    "comment": "[1] // one",
    "single-quotes": "{'a': 1}",
    "leading-zero": "[01]",
    "bare-fraction": "[.5]",
    "control-character": '"\x01"',
    "python-names": "[True, None]",
}


@pytest.mark.parametrize("written", REFUSED.values(), ids=REFUSED)
def test_what_readers_disagree_about_is_refused(written):
    with pytest.raises(NotJson, match=r"^(is|names) \w+"):
        read(written)


def test_the_deepest_that_is_taken():
    assert to_json(read("[" * MAX_DEPTH + "]" * MAX_DEPTH)) == "[" * MAX_DEPTH + "]" * MAX_DEPTH


@pytest.mark.parametrize("written", ["[]", '"{}"', "1", "null"])
def test_only_an_object_is_an_object(written):
    with pytest.raises(NotJson, match="is not an object"):
        read_object(written)


def test_brackets_and_quotes_inside_strings_are_text():
    written = r'{"a": "[{\"b\": 1}]", "\"c\"": ["\\", "}", ""], "": {}}'
    assert read(written) == json.loads(written)
    assert to_json(read(written)) == written


def test_objects_are_remembered_within_a_bound():
    known = PromptJson(limit=100)
    first = known.object('{"a": 1.0}', "x")
    assert known.object('{"a": 1.0}', "y") is first
    for i in range(20):
        known.object(f'{{"b": {i}}}', "x")
    assert known.object('{"a": 1.0}', "x") is not first
    assert known._held <= 100
    large = '{"a": "' + "x" * 200 + '"}'
    assert known.object(large, "x").value == known.object(large, "x").value == {"a": "x" * 200}
    assert known._held <= 100


def test_what_was_marked_and_written_once_is_kept():
    spellings = Spellings(["<end>"])
    known = PromptJson().object('{"a": ["<end>", 1.0], "é": {}}', "x")
    usual, other = Marks(spellings, "\ufdd0"), Marks(spellings, "\ufdd1")
    assert known.marked(usual) is known.marked(usual)
    assert "\ufdd1" in str.__str__(known.marked(other)["a"][0])
    assert known.value == {"a": ["<end>", 1.0], "é": {}}
    assert set(known.strings.split("\n")) == {"a", "<end>", "é"}
    once = known.marked(usual)
    assert to_json(once) is to_json(once)
    assert usual.plain(to_json(once)) == '{"a": ["<end>", 1.0], "é": {}}'
    assert usual.plain(to_json(once, sort_keys=True, indent=1)) != usual.plain(to_json(once))
    assert usual.plain(to_json(once, ensure_ascii=True)).endswith('"\\u00e9": {}}')


def test_a_refusal_names_the_place_and_the_reason():
    with pytest.raises(ApiError) as caught:
        PromptJson().object('{"a": NaN}', "tools[0]")
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "invalid_value", "tools[0]")
    assert "'tools[0]' must be a JSON object" in caught.value.message
