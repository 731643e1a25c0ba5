"""``ninfer run``: one generation, or a chat in the terminal, without a server."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ninfer_core import demo, options
from ninfer_core.api import (
    ApiError,
    ChatJob,
    Command,
    Delta,
    Done,
    Engine,
    InvariantError,
    Message,
    Option,
    OptionError,
    OptionValues,
    Part,
    RawJob,
    Result,
    StartupError,
    string,
)

from .local import local_engine
from .show import Screen, stats_line

if TYPE_CHECKING:
    import asyncio

    from ninfer_core.engine.engine import LocalEngine

OPTIONS = (
    Option(flag="--system", metavar="TEXT", parse=string, help="system message of the conversation"),
    Option(flag="--raw", help="the prompt is raw text for the model to go on with, not a chat turn"),
    Option(flag="--json", help="print the result as one JSON object instead of streaming it; needs a prompt"),
    Option(flag="--stats", help="print token counts and rates on stderr after each answer"),
)
USAGE = 'ninfer run [MODEL] ["PROMPT"] [options]; no MODEL is the demo model, no PROMPT is a chat (Ctrl+D ends it)'
ENGINE_FAILED = 2  # exit status


@dataclass(kw_only=True, slots=True)
class Conversation:
    """What was said so far, and how to ask for the next answer."""

    raw: bool
    system: str | None
    turns: list[Message] = field(default_factory=list)

    def job(self, prompt: str) -> ChatJob | RawJob:
        if self.raw:
            return RawJob(prompt=(prompt,), protocol="run")
        system = [_message("system", self.system)] if self.system is not None else []
        return ChatJob(messages=(*system, *self.turns, _message("user", prompt)), protocol="run")

    def keep(self, prompt: str, reasoning: str, content: str) -> None:
        """Remember a turn, a stopped one as far as it got; raw prompts have no history."""
        if not self.raw:
            answer = Message(role="assistant", content=(Part(text=content),), reasoning=reasoning or None)
            self.turns += [_message("user", prompt), answer]


def run(argv: Sequence[str]) -> int:
    """0, 1 for a refused start or prompt, 2 when the engine failed, 130 for Ctrl+C during the one generation."""
    plugins = options.compose(argv)
    found, values = options.parse(argv, plugins, "run", own=OPTIONS, usage=USAGE)
    model, prompt = (*options.exactly(found, "ninfer run", "[MODEL]", "[PROMPT]"), None, None)[:2]
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read()
    _check(values, prompt)
    talk = Conversation(raw=values["raw"], system=values["system"])
    with local_engine(demo.resolve(model), values, plugins) as (engine, runner):
        try:
            if prompt is None:
                _chat(engine, runner, talk, values)
            else:
                _once(engine, runner, talk, prompt, values)
        except ApiError as error:
            if engine.failed is None:
                raise StartupError(error.message) from None
            print(f"ninfer: the engine failed ({engine.failed})", file=sys.stderr)
            return ENGINE_FAILED
    return 0


def _check(values: OptionValues, prompt: str | None) -> None:
    if values["raw"] and values["system"] is not None:
        raise OptionError("--system is a chat message and --raw is no chat; leave one of them out")
    if values["json"] and prompt is None:
        raise OptionError("--json needs a prompt: as the second argument or on stdin")
    if prompt == "":
        raise OptionError("the prompt is empty")


def _once(engine: LocalEngine, runner: asyncio.Runner, talk: Conversation, prompt: str, values: OptionValues) -> None:
    screen = Screen(sys.stdout, silent=values["json"])
    result = runner.run(_answer(engine, talk.job(prompt), screen))
    if values["json"]:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(result_object(engine.info.id, result))).decode())
    if values["stats"]:
        print(stats_line(result), file=sys.stderr)


def _chat(engine: LocalEngine, runner: asyncio.Runner, talk: Conversation, values: OptionValues) -> None:
    """Turn after turn until Ctrl+D. Ctrl+C stops the answer and keeps what was said of it."""
    import readline  # noqa: F401 - gives input() editing and history

    print(f"{engine.info.id}: Ctrl+C stops an answer, Ctrl+D ends the chat", file=sys.stderr)
    while True:
        try:
            prompt = input("> ")
        except EOFError:
            print(file=sys.stderr)
            return
        except KeyboardInterrupt:
            print("\n(Ctrl+D ends the chat)", file=sys.stderr)
            continue
        if not prompt.strip():
            continue
        screen = Screen(sys.stdout)
        try:
            result = runner.run(_answer(engine, talk.job(prompt), screen))
        except KeyboardInterrupt:
            screen.end(" [stopped]")
        except ApiError as error:
            if engine.failed is not None:
                raise
            screen.end()
            print(f"ninfer: {error.message}", file=sys.stderr)
            continue
        else:
            if values["stats"]:
                print(stats_line(result), file=sys.stderr)
        talk.keep(prompt, screen.said("reasoning"), screen.said("content"))


async def _answer(engine: Engine, job: ChatJob | RawJob, screen: Screen) -> Result:
    """Stream one generation to the screen; leaving early cancels it."""
    generation = await (engine.chat(job) if isinstance(job, ChatJob) else engine.complete(job))
    async with generation:
        async for event in generation:
            if isinstance(event, Delta):
                screen.write(event.channel, event.text)
            elif isinstance(event, Done):
                screen.end()
                return event.result
    raise InvariantError("a generation ended without its result")


def result_object(model: str, result: Result) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {
        "model": model,
        "content": result.content,
        "reasoning": result.reasoning,
        "finish_reason": result.finish,
        "stop_string": result.stop_string,
        "prompt_tokens": result.prompt_tokens,
        "cached_tokens": result.cached_tokens,
        "completion_tokens": result.completion_tokens,
        "reasoning_tokens": result.reasoning_tokens,
        "seed": result.seed,
        "timings": result.timings.to_json(),
    }


def _message(role: Any, content: str) -> Message:
    return Message(role=role, content=(Part(text=content),))


COMMAND = Command(name="run", summary="one generation, or a chat in the terminal, without a server", run=run)
