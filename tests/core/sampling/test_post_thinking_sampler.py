"""The answer's own sampler: which of request, flags and preset decides each field of it."""

import pytest

from ninfer_core.api import OptionValues, Preset, PromptFormat, SamplingRequest
from ninfer_core.sampling.params import post_thinking_by_default, resolve_post_thinking

THINKING = Preset(temperature=1.0, top_p=0.95, top_k=20, min_p=0.05, presence_penalty=0.5)
FLAGS = {
    "post_thinking": False,
    "post_thinking_temperature": None,
    "post_thinking_top_p": None,
    "post_thinking_top_k": None,
    "post_thinking_sampler": None,
    "greedy": False,
    "temperature": 1.9,
    "top_p": 0.1,
    "seed": 77,
}


def values(**changes):
    return OptionValues({**FLAGS, **changes}, frozenset())


def resolved(request=None, *, preset=None, seed=5, **flags):
    format = PromptFormat(tokenizer=None, template=None, thinking_preset=THINKING, post_thinking_preset=preset)
    return resolve_post_thinking(request or SamplingRequest(), format, values(**flags), seed)


@pytest.mark.contract("post.preset")
def test_what_nobody_names_is_the_thinking_preset_with_temperature_0_2():
    got = resolved()
    assert (got.temperature, got.top_p, got.top_k) == (0.2, 0.95, 20)
    assert (got.min_p, got.presence_penalty, got.frequency_penalty) == (0.05, 0.5, 0.0)
    # the process's sampling flags are those of the reasoning


def test_a_preset_of_the_family_takes_its_place():
    assert resolved(preset=Preset(temperature=0.6, top_p=0.5)).temperature == 0.6


@pytest.mark.contract("post.layers")
def test_flags_win_over_the_preset_and_the_request_over_both():
    flags = {"post_thinking_temperature": 0.3, "post_thinking_sampler": {"top_k": 7, "temperature": 0.9}}
    got = resolved(SamplingRequest(top_p=0.4), **flags)
    assert (got.temperature, got.top_p, got.top_k) == (0.3, 0.4, 7)
    assert resolved(SamplingRequest(temperature=0.1, top_k=2), **flags).temperature == 0.1


@pytest.mark.contract("post.seed", "post.greedy")
def test_an_omitted_seed_goes_on_with_the_requests_and_greedy_wins_over_everything():
    assert resolved().seed == 5
    assert resolved(SamplingRequest(seed=8)).seed == 8
    assert resolved(SamplingRequest(temperature=1.0), greedy=True).temperature == 0


@pytest.mark.contract("post.off")
@pytest.mark.parametrize(
    ("flags", "on"),
    [
        ({}, False),
        ({"post_thinking": True}, True),
        ({"post_thinking_temperature": 0.0}, True),
        ({"post_thinking_top_p": 1.0}, True),
        ({"post_thinking_top_k": 0}, True),
        ({"post_thinking_sampler": {"temperature": 0.2}}, True),
    ],
    ids=str,
)
def test_it_is_off_unless_the_server_is_given_it_or_any_override_of_it(flags, on):
    assert post_thinking_by_default(values(**flags)) is on
