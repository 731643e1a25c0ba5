"""The options the engine reads. Declared free of torch: help and docs are made from them."""

from __future__ import annotations

from ninfer_core.api import Option, choice, floating, integer, string
from ninfer_core.sampling.params import sampler_fields

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def device(value: str) -> str:
    """``auto``, ``cpu``, or a CUDA device index."""
    if value in ("auto", "cpu") or (value.isascii() and value.isdigit() and len(value) <= 3):
        return value
    raise ValueError("auto, cpu or a CUDA device index")


def chunk_tokens(value: str) -> int:
    """A prefill chunk: whole pages."""
    accepted = "a multiple of 64 from 64 to 65536"
    try:
        number = integer(64, 65536)(value)
    except ValueError:
        raise ValueError(accepted) from None
    if number % 64:
        raise ValueError(accepted)
    return number


def kv_capacity(value: str) -> int | str:
    """Tokens, or ``auto``."""
    if value == "auto":
        return value
    try:
        return integer(64, 1 << 30)(value)
    except ValueError as error:
        raise ValueError(f"{error}, or auto") from None


_MACHINE = (
    Option(
        flag="--device",
        metavar="auto|cpu|N",
        parse=device,
        default="auto",
        help="where the model runs: a CUDA device index, cpu, or auto (CUDA device 0 where there is one)",
    ),
    Option(
        flag="--threads",
        metavar="N",
        parse=integer(1, 1024),
        default_text="one per core",
        help="CPU threads of one operation",
    ),
    Option(
        flag="--device-profile",
        metavar="auto|off|calibrate",
        parse=choice("auto", "off", "calibrate"),
        default="auto",
        help="block sizes of GPU kernels: auto takes those stored for the device or built in, and measures on a device "
        "that has neither; off takes the compiled ones; calibrate measures anew. Other sizes may round otherwise, one "
        "profile always gives the same output",
    ),
    Option(
        flag="--device-profile-path",
        metavar="FILE",
        parse=string,
        default_text="in the user's cache folder, by device",
        help="where measured block sizes are read and written",
    ),
    Option(
        flag="--reference-ops",
        default=False,
        help="run every operation through its fp32 reference, weights decoded exactly; with --kv-dtype fp32 this is "
        "the configuration whose outputs are compared with other implementations",
    ),
)

_MEMORY = (
    Option(
        flag="--max-context",
        metavar="N",
        parse=integer(64, 1 << 24),
        default_text="8192, or the model's trained context where that is shorter",
        help="context ceiling of each request, in tokens: prompt and output",
    ),
    Option(
        flag="--kv-capacity",
        metavar="N|auto",
        parse=kv_capacity,
        default_text="--max-context",
        help="tokens the KV pool shared by all requests holds; auto takes the memory left, up to what lanes can use",
    ),
    Option(
        flag="--kv-headroom-mib",
        metavar="N",
        parse=integer(0, 1 << 24),
        default=1024,
        aliases=("--vram-headroom-mib",),
        help="memory in MiB that --kv-capacity auto leaves free after sizing the pool",
    ),
    Option(
        flag="--kv-lease-growth",
        default=False,
        help="reserve the prompt and an output window of 4096 tokens (or --prefill-chunk when larger) instead of the "
        "whole output limit, and extend it as a request runs; an answer the pool cannot extend ends as if at its limit",
    ),
    Option(
        flag="--kv-dtype",
        metavar="NAME",
        parse=string,
        choices_from="kv_dtypes",
        default_text="bf16",
        help="how keys and values are stored",
    ),
    Option(
        flag="--no-cuda-graph",
        default=False,
        help="run every decode round step by step instead of replaying recorded ones; on a GPU only",
    ),
    Option(
        flag="--cuda-graph-allowance-mib",
        metavar="N",
        parse=integer(0, 1 << 20),
        default_text="computed from the number of recorded rounds",
        help="memory in MiB that --kv-capacity auto leaves for recorded decode rounds; the log has what they took; "
        "on a GPU only",
    ),
)

_SCHEDULING = (
    Option(
        flag="--max-concurrency",
        metavar="N",
        parse=integer(1, 256),
        default=1,
        help="requests that run at the same time",
    ),
    Option(
        flag="--max-pending-requests",
        metavar="N",
        parse=integer(1, 1 << 20),
        default=16,
        help="further requests that may wait for admission; beyond them a request is refused as overloaded",
    ),
    Option(
        flag="--pending-timeout-ms",
        metavar="N",
        parse=integer(1, 1 << 40),
        default=600_000,
        help="longest time from a request's arrival to its admission, preparation included",
    ),
    Option(
        flag="--prefill-chunk",
        metavar="N",
        parse=chunk_tokens,
        default=1024,
        help="prompt tokens processed at once; bounds the pause running streams see while a prompt is read",
    ),
    Option(
        flag="--decode-rounds-per-prefill",
        metavar="N",
        parse=integer(0, 4096),
        default=0,
        default_text="0: --prefill-chunk / 64",
        help="decode rounds that run before each prefill chunk while others generate; fewer before a shorter one",
    ),
    Option(
        flag="--concurrent-prefill",
        default=False,
        help="admit waiting requests to free lanes while others prefill; the shortest remaining prompt runs first, and "
        "one passed over eight times runs next",
    ),
    Option(
        flag="--recover-invariant-failures",
        default=False,
        help="let a broken internal invariant fail only the requests that were running, as running out of memory does",
    ),
)

_SPECULATION = (
    Option(
        flag="--spec",
        metavar="NAME",
        parse=string,
        choices_from="speculative_backends",
        default_text="off",
        help="speculative backend; changes the speed, never the output",
    ),
)

_OUTPUT = (
    Option(
        flag="--default-max-tokens",
        metavar="N",
        parse=integer(1, 1 << 24),
        default_text="the largest output that keeps every lane admissible",
        help="output limit of requests that name none",
    ),
    Option(
        flag="--temperature",
        metavar="F",
        parse=floating(0, 2),
        help="temperature of requests that name none; 0 is greedy",
    ),
    Option(flag="--top-p", metavar="F", parse=floating(0, 1), help="top-p of requests that name none"),
    Option(flag="--top-k", metavar="N", parse=integer(0, 20), help="top-k of requests that name none; 0 is 20"),
    Option(flag="--min-p", metavar="F", parse=floating(0, 1), help="min-p of requests that name none"),
    Option(
        flag="--presence-penalty",
        metavar="F",
        parse=floating(-2, 2),
        help="presence penalty of requests that name none",
    ),
    Option(
        flag="--frequency-penalty",
        metavar="F",
        parse=floating(-2, 2),
        help="frequency penalty of requests that name none",
    ),
    Option(
        flag="--seed",
        metavar="N",
        parse=integer(-(1 << 63), (1 << 63) - 1),
        default_text="fresh and random for each request",
        help="seed of requests that name none",
    ),
    Option(
        flag="--post-thinking",
        default=False,
        help="sample the answer of every thinking request apart from its reasoning",
    ),
    Option(
        flag="--post-thinking-temperature",
        metavar="F",
        parse=floating(0, 2),
        default_text="0.2",
        help="temperature of the answer after reasoning; implies --post-thinking",
    ),
    Option(
        flag="--post-thinking-top-p",
        metavar="F",
        parse=floating(0, 1),
        default_text="the thinking preset",
        help="top-p of the answer after reasoning; implies --post-thinking",
    ),
    Option(
        flag="--post-thinking-top-k",
        metavar="N",
        parse=integer(0, 20),
        default_text="the thinking preset",
        help="top-k of the answer after reasoning; implies --post-thinking",
    ),
    Option(
        flag="--post-thinking-sampler",
        metavar="temp=F,top_p=F,top_k=N[,...]",
        parse=sampler_fields,
        default_text="the thinking preset, cooler",
        help="the same overrides in one value, and min_p, presence and frequency; implies --post-thinking",
    ),
    Option(flag="--greedy", default=False, help="take the most likely token always, whatever a request asks"),
)

_PROMPT = (
    Option(flag="--no-thinking", default=False, help="do not think unless a request asks for it"),
    Option(
        flag="--default-thinking-budget",
        metavar="N",
        parse=integer(1, 1 << 24),
        default_text="no cap",
        help="thinking tokens of a request that thinks and names no budget of its own",
    ),
    Option(
        flag="--thinking-budget-message",
        metavar="TEXT",
        parse=string,
        default_text="the model's own",
        help="what is written into reasoning whose budget is spent; the close tag is appended when missing",
    ),
    Option(
        flag="--preserve-thinking", default=False, help="keep the reasoning of closed turns in the prompt by default"
    ),
    Option(
        flag="--default-reasoning-effort",
        metavar="E",
        parse=choice(*EFFORTS),
        help=f"reasoning effort of requests that name none: {', '.join(EFFORTS)}",
    ),
    Option(
        flag="--chat-template",
        metavar="FILE",
        parse=string,
        default_text="the model's own",
        help="a jinja chat template to use instead",
    ),
)

OPTIONS = _MACHINE + _MEMORY + _SCHEDULING + _SPECULATION + _OUTPUT + _PROMPT
