"""``ninfer bench``: prefill and decoding of a model, or of random weights at true sizes."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Container, Sequence
from itertools import pairwise
from pathlib import Path

from ninfer_core import demo, options
from ninfer_core.api import Command, OptionError, OptionValues
from ninfer_core.cli.local import StageLine, running

from .geometry import names
from .plan import own_options, plan, sized

USAGE = "ninfer bench [MODEL | --geometry NAME] [options]; neither is the demo model"
PATHS = ("FILE", "PATH", "DIR", "FOLDER")  # how options call a value that says where something lies


def run(argv: Sequence[str]) -> int:
    """Measure and print. 1 when recorded rounds and single steps draw different tokens: such rounds have no row."""
    plugins = options.compose(argv)
    own = own_options(names(plugins))
    found, values = options.parse(argv, plugins, "bench", own=own, usage=USAGE)
    model = _model((*options.exactly(found, "ninfer bench", "[MODEL]"), None)[0], values)
    from ninfer_core.cli.rows import check_out

    from .report import Report, copy_row
    from .requests import measured_requests
    from .rounds import measured_rounds
    from .subject import load_subject, open_geometry, open_model

    opened = open_geometry(values, plugins) if model is None else open_model(model, plugins)
    try:
        wanted = plan(values, on_gpu=_on_gpu(values), longest=opened.longest)
        values = sized(values, wanted)
        if values["out"] is not None:
            check_out(Path(values["out"]))
    except BaseException:
        opened.checkpoint.close()
        raise
    subject = load_subject(opened, values, wanted, plugins)
    line, differing = StageLine(sys.stderr), 0
    where = subject.engine.worker.program.device
    paths = {offer.option.flag for offer in options.offered(plugins, "bench", own) if offer.option.metavar in PATHS}
    report = Report(_told(found, values.words, paths), values["out"], where)
    try:
        if wanted.contexts:
            report.add([copy_row(where)])
        for context in wanted.contexts:
            for shape, rows in measured_rounds(subject, wanted, context, line.stage):
                line.clear()
                if rows is None:
                    differing += 1
                    text = f"{shape.rows} rows of {shape.width} columns at {context} tokens"
                    print(f"{text}: recorded and single steps draw different tokens; no row", file=sys.stderr)
                else:
                    report.add(rows)
        if wanted.prompts:
            with running(subject.engine) as runner:
                for rows, missing in measured_requests(subject, wanted, runner, line):
                    report.add(rows)
                    for text in missing:
                        print(text, file=sys.stderr)
    finally:
        line.clear()
    return 1 if differing else 0


def _told(found: Sequence[str], words: Sequence[str], paths: Container[str]) -> str:
    """The command as rows tell it: what was measured and how, without where files lie on this machine.

    ``paths``: the options whose value is a path, whether or not something is there.
    """
    kept = [_last_part(word) if os.path.exists(word) else word for word in found]
    for before, word in pairwise(["", *words]):
        flag, equals, value = word.partition("=") if word.startswith("--") else (before, "", word)
        if flag == "--out":
            continue
        if value and (flag in paths or os.path.exists(value)):
            word = f"{flag}={_last_part(value)}" if equals else _last_part(value)
        kept.append(word)
    return shlex.join(["ninfer", "bench", *kept])


def _last_part(path: str) -> str:
    return os.path.basename(os.path.abspath(path))


def _model(path: str | None, values: OptionValues) -> str | None:
    """The path to open; None for random weights."""
    if values["geometry"] is None:
        for key, flag in (("layers", "--layers"), ("weights", "--weights")):
            if key in values.given:
                raise OptionError(f"{flag} has no effect without --geometry")
        return demo.resolve(path)
    if path is not None:
        raise OptionError(f"--geometry {values['geometry']} and {path!r} are two models; leave one of them out")
    return None


def _on_gpu(values: OptionValues) -> bool:
    import torch

    return values["device"] != "cpu" and torch.cuda.is_available()


COMMAND = Command(name="bench", summary="prefill and decode rates of a model, as JSON rows", run=run)
