import pytest

from ninfer_kernels.sampling import uniform


@pytest.mark.parametrize(
    ("seed", "position", "purpose", "drawn"),
    [
        (0, 0, 0, 10946269),
        (1, 5, 1, 12035271),
        (42, 100, 1, 8821229),
        (42, 100, 2, 3252589),
        (42, 100, 5, 3949222),
        (2**64 - 1, 4096, 3, 89150),
    ],
)
def test_draws_equal_the_published_vectors(seed, position, purpose, drawn):
    assert uniform(seed, position, purpose) * 2**24 == drawn


def test_a_negative_seed_is_the_same_64_bits():
    assert uniform(-1, 4096, 3) == uniform(2**64 - 1, 4096, 3)
