"""``ninfer convert SOURCE OUT.ninfer``: any model that can be opened, as one artifact."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from ninfer_core.api import Command, Option, choice, integer, string

MIB = 1 << 20
DRAFT_HEAD_ROWS = 131072
USAGE = "ninfer convert SOURCE OUT.ninfer [options]"
OPTIONS = (
    Option(
        flag="--weights",
        metavar="FORMAT",
        parse=choice("keep", "bf16", "fp32", "fp8", "groupwise-int", "nvfp4"),
        default="keep",
        help="how matrices are stored: keep (as the source has them; fp16 becomes fp32, exactly), bf16, fp32, fp8 (a "
        "scale per row), groupwise-int (4 to 8 bits) or nvfp4",
    ),
    Option(
        flag="--encoder",
        metavar="NAME",
        parse=string,
        help="how scales and codes are chosen, where a format has several ways (grouped_search: slower, closer)",
        default_text="each format's usual one",
    ),
    Option(
        flag="--draft-head-ranking",
        metavar="FILE",
        parse=string,
        help="store a short output head for drafting, of the tokens with the highest counts in FILE (int64 each, "
        "little-endian, one per row of the head)",
    ),
    Option(
        flag="--draft-head-rows",
        metavar="N",
        parse=integer(1, 1 << 24),
        help="rows of the draft head",
        default_text="131072, or every token of a smaller vocabulary",
    ),
    Option(
        flag="--name",
        metavar="NAME",
        parse=string,
        help="the public model name stored in the artifact",
        default_text="the source's own",
    ),
    Option(
        flag="--max-file-mib",
        metavar="N",
        parse=integer(1, 1 << 40),
        help="split the artifact into files of at most N MiB",
        default_text="one file",
    ),
    Option(flag="--force", help="replace OUT.ninfer when it exists"),
)


def run(argv: Sequence[str]) -> int:
    """Convert, showing progress on stderr and the result on stdout. Stopped early, it leaves no file."""
    from ninfer_core import demo, options

    plugins = options.compose(argv)
    words, values = options.parse(argv, plugins, "convert", own=OPTIONS, usage=USAGE)
    source, out = options.exactly(words, "convert", "SOURCE", "OUT.ninfer")
    source = demo.resolve(source)
    from ninfer_core.weights.checkpoint import open_stored, warnings_of
    from ninfer_core.weights.conversion import left_out, new_artifact
    from ninfer_core.weights.writer import check_targets, write_artifact

    limit = values["max_file_mib"]
    # before a long look at the source
    check_targets([out], replace=values["force"])
    with _sigterm_unwinds():
        family, checkpoint = open_stored(source, plugins)
        try:
            for warning in (*warnings_of(checkpoint), *left_out(family, checkpoint)):
                print(f"warning: {warning}", file=sys.stderr)
            origin = os.path.basename(os.path.abspath(source))
            draft = _draft_head(family, checkpoint, plugins, values)
            new = new_artifact(
                family,
                checkpoint,
                plugins.weight_formats,
                weights=values["weights"],
                encoder=values["encoder"],
                draft=draft,
                name=values["name"],
                origin=origin,
            )
            with _progress(sum(tensor.bytes for tensor in new.tensors)) as advance:
                files = write_artifact(
                    out,
                    new,
                    max_file_bytes=limit * MIB if limit else None,
                    replace=values["force"],
                    wrote=partial(_wrote, checkpoint, advance),
                )
        finally:
            checkpoint.close()
    _report(files, new.tensors, plugins)
    return 0


COMMAND = Command(name="convert", summary="import a Hugging Face folder or GGUF file as a .ninfer artifact", run=run)


def _draft_head(family: Any, checkpoint: Any, plugins: Any, values: Any) -> Any:
    """The proposal head asked for, or None."""
    from ninfer_core.errors import OptionError

    ranking, rows = values["draft_head_ranking"], values["draft_head_rows"]
    if ranking is None:
        if rows is not None:
            raise OptionError("--draft-head-rows needs --draft-head-ranking")
        return None
    from ninfer_core.weights.draft_head import draft_head, public_tokens
    from ninfer_core.weights.proposal import OUTPUT

    shape = tuple(family.inventory(checkpoint.config)[OUTPUT])
    rows = rows or min(DRAFT_HEAD_ROWS, public_tokens(checkpoint, shape[0]))
    return draft_head(checkpoint, plugins.weight_formats, shape, ranking, rows)


def _wrote(checkpoint: Any, advance: Callable[[int], None], count: int) -> None:
    """A tensor is in the file: what was read for it is needed no more."""
    checkpoint.drop_pages()
    advance(count)


def _report(files: Sequence[Any], tensors: Sequence[Any], plugins: Any) -> None:
    from ninfer_core.cli.inspect import size

    total = sum(file.stat().st_size for file in files)
    formats = sorted({tensor.format for tensor in tensors})
    count = "" if len(files) == 1 else f" in {len(files)} files"
    print(f"wrote {files[0]}: {size(total)}{count}, {len(tensors)} tensors ({', '.join(formats) or 'none'})")
    for name in formats:
        if not plugins.weight_formats[name].published:
            print(f"note: format {name} is an extension; other readers of .ninfer files may not know it")


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, a line per tenth elsewhere; yields the function that counts bytes."""
    from ninfer_core.cli.inspect import size

    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("converting"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task("converting", total=total)
            yield lambda count: bar.advance(task, count)
        return
    done, tenths = 0, 0

    def count_bytes(count: int) -> None:
        nonlocal done, tenths
        done += count
        if done * 10 // total > tenths:
            tenths = done * 10 // total
            print(f"converting: {tenths * 10}% of {size(total)}", file=sys.stderr, flush=True)

    yield count_bytes


@contextlib.contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """Within, SIGTERM ends the process by an exception, so that what was begun is taken back; status 143."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
