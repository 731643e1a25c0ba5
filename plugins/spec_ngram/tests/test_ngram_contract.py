"""--spec ngram passes what every backend has to."""

from ninfer_core.testing import SpeculativeBackendContract
from ninfer_spec_ngram import ninfer_speculative_backends


class TestNgram(SpeculativeBackendContract):
    backend = ninfer_speculative_backends()[0]


class TestShortMatches(SpeculativeBackendContract):
    backend = ninfer_speculative_backends()[0]
    values = {"ngram_draft_tokens": 4, "ngram_min_match": 4}  # noqa: RUF012
