"""What --spec ngram proposes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ninfer_spec_ngram
from ninfer_core.api import DraftRequest, OptionError, OptionValues, Refusal, SpecContext
from ninfer_core.plugins import load

CONTROL = frozenset({7, 8})


def source(max_drafts=15, min_match=12, max_concurrency=1):
    options = OptionValues({"ngram_draft_tokens": max_drafts, "ngram_min_match": min_match}, frozenset())
    (backend,) = ninfer_spec_ngram.ninfer_speculative_backends()
    return backend.open(
        SpecContext(
            architecture="llama",
            max_concurrency=max_concurrency,
            max_context=4096,
            control_token_ids=CONTROL,
            options=options,
        )
    )


def propose(proposer, prompt, output=(), maximum=15, tool_texts=()):
    handle = proposer.begin(DraftRequest(request_id=1, prompt_ids=prompt, tool_texts=tool_texts))
    return proposer.propose(handle, [*prompt, *output], maximum)


TEXT = list(range(1000, 1100))  # a source of 100 tokens


def test_twenty_copied_tokens_are_followed_by_fifteen_drafts():
    draft = propose(source(), [*TEXT, 8], TEXT[:20])
    assert draft.tokens == tuple(TEXT[20:35])
    assert draft.matched == 20


def test_a_copy_stops_two_tokens_before_the_end_of_its_source():
    draft = propose(source(), [*TEXT, 8], TEXT[:95])
    assert draft.tokens == tuple(TEXT[95:98])
    assert draft.matched == 64
    for copied in (98, 99, 100):
        assert propose(source(), [*TEXT, 8], TEXT[:copied]) is None


def test_a_match_shorter_than_the_minimum_is_no_match():
    assert propose(source(min_match=12), [*TEXT, 8], TEXT[:11]) is None
    assert propose(source(min_match=12), [*TEXT, 8], TEXT[:12]).matched == 12
    assert propose(source(min_match=4), [*TEXT, 8], TEXT[:4]).matched == 4


@pytest.mark.parametrize(("maximum", "expected"), [(0, 0), (1, 1), (4, 4), (15, 15), (40, 15)])
def test_no_more_tokens_are_proposed_than_asked_for_or_configured(maximum, expected):
    draft = propose(source(), [*TEXT, 8], TEXT[:20], maximum=maximum)
    assert len(draft.tokens if draft else ()) == expected


def test_a_window_of_zero_proposes_nothing():
    assert propose(source(max_drafts=0), [*TEXT, 8], TEXT[:20]) is None


def test_neither_copies_nor_matches_cross_a_control_token():
    prompt = [*TEXT[:30], 7, *TEXT[30:], 8]
    # what follows the match ends at the boundary, so eight tokens less the two spared remain
    assert propose(source(), prompt, TEXT[:22]).tokens == tuple(TEXT[22:28])
    # the match itself starts after the boundary
    draft = propose(source(min_match=4), prompt, TEXT[:40])
    assert draft.matched == 10
    assert draft.tokens == tuple(TEXT[40:55])


def test_the_output_is_a_source_of_its_own():
    # the prompt's end and the output's start are no sequence to copy
    prompt = [*TEXT[:20]]
    output = [*range(2000, 2030), *TEXT[:20]]
    assert propose(source(), prompt, output) is None
    # the output itself is copied from
    again = [*range(2000, 2030), 5, *range(2000, 2014)]
    assert propose(source(), TEXT[:20], again).tokens == tuple([*range(2014, 2030), 5][:15])


def test_tool_texts_are_searched_like_the_prompt():
    draft = propose(source(), [1, 2, 3], TEXT[:16], tool_texts=[range(500, 530), TEXT])
    assert draft.tokens == tuple(TEXT[16:31])


def test_tool_texts_do_not_run_into_each_other():
    assert propose(source(), [1, 2, 3], TEXT[:16], tool_texts=[TEXT[:18], range(500, 530)]) is None


def test_the_newest_of_equally_long_matches_wins():
    prompt = [*TEXT[:16], *range(3000, 3020), 7, *TEXT[:16], *range(4000, 4020), 8]
    assert propose(source(), prompt, TEXT[:16]).tokens == tuple(range(4000, 4015))


def test_of_equally_long_matches_the_longer_continuation_wins():
    prompt = [*TEXT[:16], *range(3000, 3020), 7, *TEXT[:16], *range(4000, 4006), 8]
    assert propose(source(), prompt, TEXT[:16]).tokens == tuple(range(3000, 3015))


def test_a_longer_match_wins_over_a_newer_one():
    prompt = [50, 51, *TEXT[:16], *range(3000, 3020), 7, *TEXT[:16], *range(4000, 4020), 8]
    draft = propose(source(), prompt, [50, 51, *TEXT[:16]])
    assert draft.matched == 18
    assert draft.tokens == tuple(range(3000, 3015))


def test_output_arrives_in_any_pieces():
    proposer = source()
    handle = proposer.begin(DraftRequest(request_id=1, prompt_ids=[*TEXT, 8]))
    ledger = [*TEXT, 8]
    for count in (1, 3, 9, 30, 2):
        ledger += TEXT[len(ledger) - 101 :][:count]
        draft = proposer.propose(handle, ledger, 15)
        done = len(ledger) - 101
        assert (draft.tokens if draft else ()) == (tuple(TEXT[done : done + 15]) if done >= 12 else ())
        if draft:
            proposer.observe(handle, draft, 0)


def test_finish_gives_the_memory_back():
    proposer = source()
    handle = proposer.begin(DraftRequest(request_id=1, prompt_ids=TEXT))
    proposer.propose(handle, TEXT, 15)
    assert handle.index is not None
    proposer.finish(handle)
    assert handle.index is None
    assert handle.request is None
    # a request that never reached a decode round
    proposer.finish(proposer.begin(DraftRequest(request_id=2, prompt_ids=TEXT)))


def segments(tokens):
    """The stretches between control tokens."""
    out = [[]]
    for token in tokens:
        if token in CONTROL:
            out.append([])
        else:
            out[-1].append(token)
    return out


@settings(max_examples=150, deadline=None)
@given(
    prompt=st.lists(st.sampled_from([1, 2, 3, 7]), min_size=1, max_size=80),
    tool=st.lists(st.sampled_from([1, 2, 3]), max_size=30),
    output=st.lists(st.sampled_from([1, 2, 3, 8]), max_size=80),
    min_match=st.integers(4, 20),
    maximum=st.integers(1, 15),
)
def test_every_proposal_continues_a_match_within_one_segment(prompt, tool, output, min_match, maximum):
    draft = propose(source(min_match=min_match), prompt, output, maximum, [tool])
    if draft is None:
        return
    assert min_match <= draft.matched <= 64
    assert 1 <= len(draft.tokens) <= maximum
    copied = [*[*prompt, *output][-draft.matched :], *draft.tokens]
    # the two spared tokens are there too, unseen
    places = [
        start
        for segment in (*segments(prompt), tool, *segments(output))
        for start in range(len(segment) - len(copied) - 1)
        if segment[start : start + len(copied)] == copied
    ]
    assert places


def test_more_than_fifteen_drafts_need_a_single_lane():
    with pytest.raises(Refusal, match=r"--ngram-draft-tokens 16 needs --max-concurrency 1 \(it is 2\)"):
        source(max_drafts=16, max_concurrency=2)
    assert source(max_drafts=15, max_concurrency=256).max_drafts == 15
    assert source(max_drafts=63, max_concurrency=1).max_drafts == 63


def test_the_plugin_offers_its_backend_and_options():
    plugins = load(only=["spec_ngram"])
    assert plugins.broken() == []
    assert plugins.speculative_backends["ngram"].role == "copy"
    drafts, match = plugins.options["--ngram-draft-tokens"], plugins.options["--ngram-min-match"]
    assert (drafts.default, match.default) == (15, 12)
    for option, good, bad in ((drafts, "63", "64"), (match, "4", "3"), (match, "64", "65")):
        assert option.parse(good) == int(good)
        with pytest.raises((ValueError, OptionError)):
            option.parse(bad)
