"""What a server does that was given no option: the defaults of the contract's table, and the ranges of its numbers."""

from __future__ import annotations

import pytest

from ninfer_core import options
from ninfer_core.errors import OptionError
from ninfer_core.testing import compose

DEFAULTS = {
    "host": "127.0.0.1",
    "port": 8080,
    "stats_port": None,
    "api_key": None,
    "model_id": None,
    "kv_headroom_mib": 1024,
    "max_concurrency": 1,
    "max_pending_requests": 16,
    "pending_timeout_ms": 600_000,
    "recover_invariant_failures": False,
    "prefill_chunk": 1024,
    "decode_rounds_per_prefill": 0,
    "concurrent_prefill": False,
    "kv_lease_growth": False,
    "log_level": "info",
    "max_request_mib": 384,
    "response_store_max_records": 1024,
    "response_store_max_mib": 256,
    "spec": None,
    "default_max_tokens": None,
    "default_thinking_budget": None,
    "thinking_budget_message": None,
    "default_reasoning_effort": None,
    "assistant_prefill": False,
    "lenient_assistant_history": False,
    "lenient_image_detail": False,
    "usage_chunk_choice": False,
    "no_thinking": False,
    "preserve_thinking": False,
    "cors": False,
    "temperature": None,
    "top_p": None,
    "top_k": None,
    "min_p": None,
    "presence_penalty": None,
    "frequency_penalty": None,
    "seed": None,
    "greedy": False,
    "post_thinking": False,
    "post_thinking_temperature": None,
    "post_thinking_top_p": None,
    "post_thinking_top_k": None,
    "post_thinking_sampler": None,
}
RANGES = [
    ("--max-concurrency", "1", "256"),
    ("--max-pending-requests", "1", None),
    ("--port", "0", "65535"),
    ("--temperature", "0", "2"),
    ("--top-p", "0", "1"),
    ("--top-k", "0", "20"),
    ("--min-p", "0", "1"),
    ("--presence-penalty", "-2", "2"),
    ("--frequency-penalty", "-2", "2"),
    ("--post-thinking-temperature", "0", "2"),
    ("--post-thinking-top-k", "0", "20"),
    ("--default-max-tokens", "1", None),
    ("--default-thinking-budget", "1", None),
]


@pytest.fixture(scope="module")
def plugins():
    return compose(["openai", "anthropic", "llamacpp"])


@pytest.mark.contract("options.defaults")
def test_an_option_left_out_has_its_default(plugins):
    _, values = options.parse(["model"], plugins, "serve")
    assert {name: values[name] for name in DEFAULTS} == DEFAULTS
    assert values.given == frozenset()


@pytest.mark.contract("options.ranges", "options.top-k")
@pytest.mark.parametrize(("flag", "least", "most"), RANGES, ids=[flag for flag, _, _ in RANGES])
def test_the_ends_of_a_range_are_taken_and_what_is_beyond_is_refused(plugins, flag, least, most):
    for value in filter(None, (least, most)):
        name = flag.removeprefix("--").replace("-", "_")
        assert options.parse([f"{flag}={value}"], plugins, "serve")[1][name] == float(value)
    for value in (str(int(least) - 1), *([str(int(most) + 1)] if most else ()), "nan", "x", ""):
        with pytest.raises(OptionError) as refused:
            options.parse([f"{flag}={value}"], plugins, "serve")
        assert f"{flag} '{value}'" in str(refused.value)
        assert least in str(refused.value)
