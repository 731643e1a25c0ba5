import pytest

from ninfer_core.text.tool_sources import derived_sources

CASES = {
    "colon": ("1: a\n2:   b\n3: c", ["a\n  b\nc"]),
    "tab": ("  9\ta\n 10\tb\n 11\t\n", ["a\nb\n\n"]),
    "arrow": ("     1→def f():\n     2→    return\n     3→x\nend", ["def f():\n    return\nx\n"]),
    "pipes": ("L1 | a\nL2 | b\nL3 | c\n", ["a\nb\nc\n"]),
    "pipe": ("1| a\n2| b\n3| c\n4| d", ["a\nb\nc\nd"]),
    "too-short": ("1: a\n2: b\nx", []),
    "gap": ("1: a\n2: b\n4: c\n5: d\n6: e", ["c\nd\ne"]),
    "style-change": ("1: a\n2: b\n3\tc\n4\td\n5\te", ["c\nd\ne"]),
    "carriage-returns": ("1: a\r\n2: b\r\n3: c\r\n", ["a\r\nb\r\nc\r\n"]),
    "two-runs": ("1: a\n2: b\n3: c\n--\n7: x\n8: y\n9: z", ["a\nb\nc\n", "x\ny\nz"]),
    "not-u64": (f"{1 << 64}: a\n{(1 << 64) + 1}: b\n{(1 << 64) + 2}: c", []),
    "many-digits": ("1" * 5000 + ": a", []),
    "other-digits": ("١: a\n٢: b\n٣: c", []),
}


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_numbered_listings_give_their_bodies(text, expected):
    assert derived_sources(text) == expected
