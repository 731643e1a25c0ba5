"""What ``ninfer bench`` is asked to measure: its options, and the engine they need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ninfer_core.api import Option, OptionError, OptionValues, choice, integer, string
from ninfer_core.cli.local import changed
from ninfer_core.kv.pages import PAGE_TOKENS, pages_for

CHECKED = 4  # rounds whose tokens are compared before any is timed
LONGEST = 1 << 24  # tokens
SCHEMES = ("bf16", "fp8", "groupwise-int", "nvfp4")

Numbers = tuple[int, ...]


def numbers(low: int, high: int, *, may_be_none: bool = False) -> Callable[[str], Numbers]:
    """``1,8`` -> (1, 8), each once; ``none`` -> () where there may be none."""
    one = integer(low, high)
    accepted = f"whole numbers from {low} to {high} with commas between them"

    def parse(value: str) -> Numbers:
        if may_be_none and value == "none":
            return ()
        try:
            return tuple(dict.fromkeys(one(part) for part in value.split(",")))
        except ValueError:
            raise ValueError(accepted + ", or none" * may_be_none) from None

    return parse


OPTIONS = (
    Option(
        flag="--geometry",
        metavar="NAME",
        parse=string,
        help="random weights at the sizes of a published model, in place of MODEL; made on the device",
        default_text="MODEL's own weights",
    ),
    Option(
        flag="--layers",
        metavar="N",
        parse=integer(1, 1 << 16),
        help="of a --geometry, this many of its layers",
        default_text="all",
    ),
    Option(
        flag="--weights",
        metavar="FORMAT",
        parse=choice(*SCHEMES),
        default="bf16",
        help=f"of a --geometry, how its matrices are stored: {', '.join(SCHEMES)}, as ninfer convert has them",
    ),
    Option(
        flag="--prompt-tokens",
        metavar="A,B",
        parse=numbers(1, LONGEST, may_be_none=True),
        default_text="512; on a GPU 512,2048,8192",
        help="prompt lengths whose prefill is measured; the first is also that of the requests that decode; none: no "
        "requests",
    ),
    Option(
        flag="--decode-tokens",
        metavar="N",
        parse=integer(2, LONGEST),
        default=64,
        help="tokens each request generates",
    ),
    Option(
        flag="--rows",
        metavar="A,B",
        parse=numbers(1, 256),
        default_text="1; on a GPU 1,8",
        help="sequences that run together",
    ),
    Option(
        flag="--contexts",
        metavar="A,B",
        parse=numbers(1, LONGEST, may_be_none=True),
        default_text="none; on a GPU 1024,8192",
        help="tokens before a decode round that is measured on its own; none: no such rounds",
    ),
    Option(
        flag="--widths",
        metavar="A,B",
        parse=numbers(1, 64),
        default=(1, 4, 8),
        help="columns of each row of such a round: 1, and drafts to verify",
    ),
    Option(
        flag="--rounds", metavar="N", parse=integer(1, 100_000), default=30, help="rounds behind each row of --contexts"
    ),
    Option(flag="--eager", default=False, help="time rounds step by step too, where they are recorded"),
    Option(
        flag="--repeats", metavar="N", parse=integer(1, 1000), default=3, help="requests behind each row of prefill"
    ),
    Option(flag="--out", metavar="FILE", parse=string, help="append the rows to this file", default_text="stdout"),
)


def own_options(geometries: Sequence[str]) -> tuple[Option, ...]:
    """The options, the help of ``--geometry`` naming those there are."""
    names = ", ".join(geometries) or "none installed"
    return tuple(replace(one, help=f"{one.help} ({names})") if one.flag == "--geometry" else one for one in OPTIONS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The options, with the defaults of the device."""

    prompts: Numbers  # tokens
    decode_tokens: int
    rows: Numbers
    contexts: Numbers  # tokens
    widths: Numbers
    rounds: int
    repeats: int
    eager: bool

    @property
    def context(self) -> int:
        """Tokens of the longest sequence."""
        ends = [self.prompt_end(tokens) for tokens in self.prompts] + [tokens + self.room for tokens in self.contexts]
        return max(ends, default=1)

    def prompt_end(self, tokens: int) -> int:
        """Tokens of a request with such a prompt: the first length is the one that generates."""
        return tokens + (self.decode_tokens if tokens == self.prompts[0] else 1)

    @property
    def room(self) -> int:
        """Tokens a sequence grows by while its rounds are measured, every draft taken."""
        return (CHECKED + self.rounds + 1) * max(self.widths)


def plan(values: OptionValues, *, on_gpu: bool, longest: int) -> Plan:
    """``longest``: the tokens a sequence of the model may have. What was asked for and is longer is an OptionError; a
    default that is longer is left out."""
    wanted = Plan(
        prompts=_chosen(values["prompt_tokens"], (512, 2048, 8192) if on_gpu else (512,)),
        decode_tokens=values["decode_tokens"],
        rows=_chosen(values["rows"], (1, 8) if on_gpu else (1,)),
        contexts=_chosen(values["contexts"], (1024, 8192) if on_gpu else ()),
        widths=values["widths"],
        rounds=values["rounds"],
        repeats=values["repeats"],
        eager=values["eager"],
    )
    prompts, contexts = wanted.prompts, wanted.contexts
    if values["prompt_tokens"] is None:
        prompts = tuple(tokens for tokens in prompts if wanted.prompt_end(tokens) <= longest)
    if values["contexts"] is None:
        contexts = tuple(tokens for tokens in contexts if tokens + wanted.room <= longest)
    fitting = replace(wanted, prompts=prompts, contexts=contexts)
    if not prompts and not contexts:
        raise OptionError(f"nothing to measure; name --prompt-tokens or --contexts (this model takes {longest} tokens)")
    if fitting.context > longest:
        text = f"a sequence would have {fitting.context} tokens, and this model takes {longest}"
        raise OptionError(f"{text}; lower --prompt-tokens, --decode-tokens, --contexts or --rounds")
    return fitting


def _chosen(asked: Numbers | None, usual: Numbers) -> Numbers:
    return usual if asked is None else asked


def sized(values: OptionValues, wanted: Plan) -> OptionValues:
    """Lanes, context and pool as large as the plan asks for, where the operator did not say."""
    lanes = max(wanted.rows)
    if "max_concurrency" in values.given and values["max_concurrency"] < lanes:
        raise OptionError(f"--rows {lanes} needs --max-concurrency {lanes} or more; leave that option out")
    context = values["max_context"] if "max_context" in values.given else max(wanted.context, PAGE_TOKENS)
    if context < wanted.context:
        text = f"this measurement needs --max-context {wanted.context} or more; leave that option out"
        raise OptionError(f"--max-context {context} is too short: {text}")
    pool = values["kv_capacity"] if "kv_capacity" in values.given else pages_for(context) * PAGE_TOKENS * lanes
    return changed(values, max_concurrency=lanes, max_context=context, kv_capacity=pool)
