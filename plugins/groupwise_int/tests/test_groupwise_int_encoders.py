"""How scales and codes are chosen (``spec/artifact.md`` §13.1, §13.2, §21 V9)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ninfer_groupwise_int
from ninfer_groupwise_int.encoders import KINDS, codes_for, grouped_absmax, grouped_search, neighbours

FORMATS = {item.name: item for item in ninfer_groupwise_int.ninfer_weight_formats()}
Q4 = KINDS["q4_g64"]


def group(*values, width=64):
    return torch.nn.functional.pad(torch.tensor(values, dtype=torch.float32), (0, width - len(values)))[None]


def word(scale):
    return int(scale.view(torch.int16)) & 0xFFFF


def test_v9a_absmax_scale_and_codes():
    scales, codes = grouped_absmax(group(7, 3.5, -3.5, 0.5, 1.5, 2.5, -0.5, -7), Q4)
    assert word(scales) == 0x3C00
    assert codes[0, :8].tolist() == [7, 4, -4, 0, 2, 2, 0, -7]


def test_v9b_a_scale_below_binary16_becomes_its_smallest():
    scales, codes = grouped_absmax(group(1e-8, -1e-8), Q4)
    assert word(scales) == 0x0001
    assert codes.any().item() is False


def test_v9c_codes_come_from_the_reciprocal_and_not_from_division():
    values = torch.tensor([0x3FC61D43, 0x3F461400], dtype=torch.int32).view(torch.float32)
    groups = group(*values.tolist())
    scales, codes = grouped_absmax(groups, Q4)
    assert word(scales) == 0x3313
    assert codes[0, 1] == 3
    assert torch.round(groups[0, 1] / scales.float()) == 4


def test_zeros_have_scale_zero():
    scales, codes = grouped_absmax(group(-0.0), Q4)
    assert word(scales) == 0 and not codes.any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", KINDS)
def test_a_value_that_is_not_finite_is_an_error(kind, bad):
    with pytest.raises(ValueError, match="not finite"):
        FORMATS[f"{kind}_fp16"].quantize(torch.tensor([[1.0, bad]]))


def test_a_scale_beyond_binary16_is_an_error_and_never_a_clip():
    form = FORMATS["q4_g64_fp16"]
    form.quantize(torch.full((1, 64), 7 * 65504.0))
    with pytest.raises(ValueError, match="scale beyond binary16"):
        form.quantize(torch.full((1, 64), 7 * 65520.0))


@pytest.mark.parametrize(
    ("kind", "error"), [("q4_g64", 0.107), ("q5_g64", 0.050), ("q6_g64", 0.024), ("q8_g32", 0.0054)]
)
def test_the_error_on_gaussian_weights_is_the_known_one(kind, error):
    x = torch.randn(64, 1024, generator=torch.Generator().manual_seed(1))
    form = FORMATS[f"{kind}_fp16"]
    off = (form.decode(form.quantize(x)) - x).square().mean().sqrt() / x.square().mean().sqrt()
    assert off == pytest.approx(error, rel=0.05)


def squared(groups, scales, codes):
    return (groups.double() - scales.double()[:, None] * codes.double()).square().sum(1)


def search_by_the_book(values, kind):
    """One group, candidate after candidate, in Python floats (§13.2)."""
    x = values[None]
    scales, codes = grouped_absmax(x, kind)
    best = (scales, codes, squared(x, scales, codes).item())
    first, first_codes = scales.double().item(), codes

    def half(value):
        if value == 0 or value != value:
            return None
        rounded = torch.tensor(value, dtype=torch.float64).float().half()
        if rounded == 0:
            rounded = torch.tensor(2.0**-24 if value > 0 else -(2.0**-24)).half()
        return rounded if torch.isfinite(rounded) else None

    def steps(scale, moves):
        at = int(scale.view(torch.int16)) & 0xFFFF
        for move in moves:
            magnitude = (at & 0x7FFF) + move
            if 0 < magnitude < 0x7C00:
                yield (
                    torch.tensor((at & 0x8000 | magnitude) - (1 << 16 if at & 0x8000 else 0))
                    .to(torch.int16)
                    .view(torch.float16)
                    .double()
                    .item()
                )

    def fit(codes):
        power = codes.double().square().sum().item()
        return (values.double() * codes[0].double()).sum().item() / power if power else 0.0

    def consider(candidate):
        nonlocal best
        scale = half(candidate)
        if scale is None:
            return
        codes = codes_for(x, scale[None], kind)
        error = squared(x, scale[None], codes).item()
        if error < best[2]:
            best = (scale[None], codes, error)

    largest = values.abs().max().double().item()
    signed = values[values.abs().argmax()].double().item()
    for bound, extreme in ((kind.most, largest), (kind.least, signed)):
        for i in range(25):
            consider((0.70 + 0.02 * i) * extreme / bound)
    for factor in (0.25, 0.5, 2.0, 4.0):
        consider(first * factor)
    for candidate in steps(scales[0], (-2, -1, 1, 2)):
        consider(candidate)
    middle = fit(first_codes)
    for factor in (1.0, 0.5, 2.0):
        consider(middle * factor)
    for candidate in steps(half(middle), (-2, -1, 1, 2)) if half(middle) is not None else ():
        consider(candidate)
    last = fit(best[1])
    consider(last)
    for candidate in list(steps(half(last), (-1, 1))) if half(last) is not None else ():
        consider(candidate)
    return best


@settings(max_examples=25, deadline=None)
@given(kind=st.sampled_from(sorted(KINDS)), seed=st.integers(0, 1 << 30), scale=st.sampled_from([1e-7, 0.02, 1.0, 3e3]))
def test_the_search_is_the_one_of_the_specification(kind, seed, scale):
    kind = KINDS[kind]
    groups = torch.randn(3, kind.group, generator=torch.Generator().manual_seed(seed)) * scale
    scales, codes = grouped_search(groups, kind)
    for row in range(3):
        expected_scale, expected_codes, _ = search_by_the_book(groups[row], kind)
        assert word(scales[row]) == word(expected_scale[0])
        assert torch.equal(codes[row], expected_codes[0])


def test_the_search_is_never_worse_than_absmax_and_uses_negative_scales():
    groups = torch.randn(512, 64, generator=torch.Generator().manual_seed(3))
    found, plain = grouped_search(groups, Q4), grouped_absmax(groups, Q4)
    assert (squared(groups, *found) <= squared(groups, *plain)).all()
    assert squared(groups, *found).sum() < 0.8 * squared(groups, *plain).sum()
    assert (found[0] < 0).any() and (found[0] > 0).any()


def test_both_encoders_are_offered_by_name_and_the_search_is_smaller_in_error():
    x = torch.randn(8, 256, generator=torch.Generator().manual_seed(4))
    form = FORMATS["q4_g64_fp16"]
    assert list(form.encoders) == ["grouped_absmax", "grouped_search"]
    errors = []
    for encode in form.encoders.values():
        whole, pieces = encode((8, 256), lambda: [x]), encode((8, 256), lambda: x.split(3))
        assert torch.equal(whole.data, pieces.data)
        errors.append((form.decode(whole) - x).square().sum().item())
    assert errors[1] < errors[0]


def test_rows_that_do_not_add_up_are_an_error():
    encode = FORMATS["q4_g64_fp16"].encoders["grouped_absmax"]
    for count in (2, 4):
        with pytest.raises(ValueError, match="3"):
            encode((3, 64), lambda count=count: [torch.ones(count, 64)])


def test_neighbours_step_in_magnitude_and_stop_at_the_ends():
    scales = torch.tensor([1.0, -1.0, 2.0**-24, 65504.0]).half()
    down, up = neighbours(scales, (-1, 1))
    assert down.tolist() == [1 - 2**-11, -(1 - 2**-11), 0.0, 65472.0]
    assert up.tolist()[:3] == [1 + 2**-10, -(1 + 2**-10), 2.0**-23]
    assert torch.isinf(up[3])
