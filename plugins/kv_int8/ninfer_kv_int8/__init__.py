"""--kv-dtype int8: Hadamard-rotated int8 keys and int8 values, one fp16 scale per 64 elements of each."""

from __future__ import annotations

from ninfer_core.api import KVCodec, KVDtype, Plane, Refusal, hookimpl

NINFER_API = 1
GROUP = 64  # elements per scale, and the smallest head dimension


@hookimpl
def ninfer_kv_dtypes() -> list[KVDtype]:
    return [
        KVDtype(
            name="int8",
            summary="int8 keys (rotated) and values, about half of bf16's memory, head dimensions 64, 128, 256, ...",
            key_planes=planes,
            open=open_codec,
        )
    ]


def planes(head_dim: int) -> tuple[Plane, ...]:
    """Codes and scales of one row, key or value; Refusal unless the head dimension is a power of two of at least 64."""
    if head_dim < GROUP or head_dim & (head_dim - 1):
        raise Refusal(
            f"--kv-dtype int8 holds head dimensions that are a power of two of at least {GROUP}; this model's is "
            f"{head_dim}. Use --kv-dtype bf16"
        )
    return (Plane(dtype="int8", width=head_dim), Plane(dtype="float16", width=head_dim // GROUP))


def open_codec(head_dim: int) -> KVCodec:
    """Rotated keys, values as they are."""
    planes(head_dim)
    from .codec import Int8Codec

    return KVCodec(keys=Int8Codec(rotates=True), values=Int8Codec(rotates=False), rotates_keys=True)
