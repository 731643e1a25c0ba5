"""The hash, the ring and the buckets of the ngram index."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_spec_ngram import index as ngram
from ninfer_spec_ngram.index import BOUNDARY, BUCKETS, NgramIndex, hash_tokens, hash_windows


@pytest.mark.parametrize(
    ("tokens", "expected", "bucket"),
    [
        ([1, 2, 3, 4], 0x0118B2675FA48430, 295984),
        (list(range(100, 116)), 0x311B6AC91872D6EE, 186094),
        (list(range(108, 116)), 0x8F33C5411A9675EA, None),
    ],
)
def test_hashes_are_the_published_ones(tokens, expected, bucket):
    assert hash_tokens(tokens) == expected
    assert hash_windows(np.array(tokens, dtype=np.int32), len(tokens)).tolist() == [expected]
    if bucket is not None:
        assert expected % BUCKETS == bucket


@given(st.lists(st.integers(-1, 2**31 - 1), min_size=16, max_size=40), st.sampled_from(ngram.WIDTHS))
def test_windows_hash_like_their_tokens(tokens, width):
    windows = [tokens[i : i + width] for i in range(len(tokens) - width + 1)]
    assert hash_windows(np.array(tokens, dtype=np.int32), width).tolist() == [hash_tokens(w) for w in windows]


class NaiveIndex:
    """The rule of the fact sheet, read aloud: dictionaries of lists, one window after the other."""

    def __init__(self):
        self.tokens, self.buckets = [], {}

    def append(self, tokens):
        for token in tokens:
            self.tokens.append(token)
            for width in (16, 8, 4):
                window = self.tokens[-width:]
                if len(window) == width and BOUNDARY not in window:
                    bucket = self.buckets.setdefault(hash_tokens(window) % BUCKETS, [])
                    bucket.insert(0, (len(self.tokens), width))
                    del bucket[4:]

    def find(self, history, min_match, wanted):
        best = None
        for width in (16, 8, 4):
            if len(history) < width:
                continue
            for end, entry_width in self.buckets.get(hash_tokens(history[-width:]) % BUCKETS, []):
                if entry_width != width or self.tokens[end - width : end] != history[-width:]:
                    continue
                length = 0
                while length < min(len(history), end) and self.tokens[end - length - 1] == history[-length - 1]:
                    length += 1
                following = []
                for token in self.tokens[end : end + wanted]:
                    if token == BOUNDARY:
                        break
                    following.append(token)
                if length < min_match or not following:
                    continue
                if best is None or (length, len(following)) > (best[0], len(best[1])):
                    best = (length, following)
        return best


# few distinct tokens, so that histories repeat, match at several places and overflow buckets
TOKENS = st.lists(st.sampled_from([BOUNDARY, 1, 1, 2, 2, 3]), max_size=60)


@settings(max_examples=150, deadline=None)
@given(st.lists(TOKENS, min_size=1, max_size=6), st.integers(4, 12), st.integers(1, 17))
def test_it_finds_what_the_naive_index_finds(pieces, min_match, wanted):
    index, naive, written = NgramIndex(), NaiveIndex(), []
    for piece in pieces:
        index.append(piece)
        naive.append(piece)
        written += piece
        history = [token for token in written if token != BOUNDARY][-64:]
        found = index.find(history, min_match, wanted)
        expected = naive.find(history, min_match, wanted)
        assert (found and (found.length, found.following)) == expected


def test_one_large_and_many_small_appends_index_alike():
    rng = np.random.default_rng(5)
    tokens = rng.integers(1, 4, 3000).tolist()
    whole, pieces = NgramIndex(), NgramIndex()
    whole.append(tokens)
    for start in range(0, len(tokens), 7):
        pieces.append(tokens[start : start + 7])
    assert np.array_equal(whole._table, pieces._table)


def test_tokens_older_than_the_ring_are_forgotten(monkeypatch):
    monkeypatch.setattr(ngram, "RING", 64)
    index = NgramIndex()
    index.append(list(range(100, 120)))
    assert index.find(list(range(100, 116)), 4, 4).following == [116, 117, 118, 119]
    # the ring turns over, in large and in small appends
    index.append(list(range(200, 240)))
    assert index.find(list(range(100, 116)), 4, 4).following == [116, 117, 118, 119]
    for token in range(300, 330):
        index.append([token])
    assert index.find(list(range(100, 116)), 4, 4) is None
    assert index.find(list(range(300, 316)), 4, 4).following == [316, 317, 318, 319]
    # a match reaches back to the oldest token still held, and no further
    match = index.find(list(range(200, 240)), 4, 2)
    assert match.following == [300, 301]
    assert match.length == 34


def test_an_append_larger_than_the_ring_keeps_its_end(monkeypatch):
    monkeypatch.setattr(ngram, "RING", 64)
    index = NgramIndex()
    index.append([1, 2, 3])
    index.append(list(range(1000, 1200)))
    assert index.find(list(range(1000, 1016)), 4, 4) is None
    assert index.find(list(range(1140, 1156)), 4, 4).following == [1156, 1157, 1158, 1159]
