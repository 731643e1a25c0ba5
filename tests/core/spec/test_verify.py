from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.spec.verify import licensed

tokens = st.integers(0, 3)


@given(target=st.lists(tokens, min_size=1, max_size=12), drafts=st.lists(tokens, max_size=11))
def test_drafts_never_change_which_tokens_come(target, drafts):
    drafts = drafts[: len(target) - 1]
    kept = licensed(target[: len(drafts) + 1], drafts)
    assert kept == target[: len(kept)]
    assert 1 <= len(kept) <= len(drafts) + 1


@given(target=st.lists(tokens, min_size=1, max_size=12))
def test_right_drafts_are_all_kept_with_the_bonus(target):
    assert licensed(target, target[:-1]) == target


def test_the_first_wrong_draft_is_replaced_by_the_correction():
    assert licensed([5, 6, 9, 1], [5, 6, 7]) == [5, 6, 9]
