"""The output of one request: tokens in, channel text and tool calls out, and where it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ninfer_core.api import GeneratedCall, ReasoningSyntax, Tokenizer, ToolReport
from ninfer_core.api.jobs import Channel, FinishReason
from ninfer_core.errors import InvariantError

from .channels import ChannelSplitter, Pieces
from .detokenize import TextStream
from .stops import StopMatcher
from .tool_reader import ToolReader, ToolReading

Deltas = tuple[tuple[Channel, str], ...]


@dataclass(kw_only=True, slots=True)
class Taken:
    """What ``OutputSession.preview`` decided about the tokens of one round; nothing is real before ``commit``.

    Not frozen: one is made per row and round, and a frozen one takes four times as long to make.
    """

    kept: int  # tokens that count, the one that ends included
    finish: FinishReason | None
    stop_string: str | None
    deltas: Deltas  # in order; no piece is empty, neighbours differ in channel
    calls: tuple[GeneratedCall, ...]  # complete ones; they come after every piece of text
    token_ids: tuple[int, ...]  # the kept ones
    reasoning_tokens: int  # of the kept ones
    marks: tuple[int | None, ...]  # per kept token: where in the answer's text its first byte falls; None: nowhere
    decoder: _Decoder | None  # the state after them; None: one more piece of plain answer
    base: int  # tokens committed when this was previewed


class OutputSession:
    """Reads one request's tokens: whole scalars, channels, stop strings, tool calls, the output limit.

    A round is previewed (no side effect), and committed once the model's state is. The result is the same for every
    split of the tokens into rounds. A stop token ends the turn; it is kept and counted, and its text is withheld.
    Special tokens have no text, except the family's reasoning tags and, where calls are read, those of the calls.
    ``raw``: no channels, everything is content. Whatever is held back (a part of a character, a tag or a stop string)
    is text once the turn has ended. Stop strings act on the answer as the model writes it, the markup of calls
    included; ``tools`` reads what they let through.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop_ids: frozenset[int],
        stops: tuple[str, ...],
        reasoning: ReasoningSyntax | None,
        in_reasoning: bool,
        limit: int,
        limit_finish: FinishReason,
        raw: bool,
        tools: ToolReading | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids
        self._limit = limit
        self._limit_finish = limit_finish
        syntax = None if raw else reasoning
        self._hidden = hidden_ids(tokenizer, syntax)
        if tools is not None and not raw:
            self._hidden -= {tokenizer.control_tokens.get(token, -1) for token in tools.syntax.tokens}
        matcher = StopMatcher(stops)
        self._decoder = _Decoder(
            TextStream(),
            ChannelSplitter(syntax, in_reasoning and syntax is not None),
            {"reasoning": matcher, "content": matcher.copy()},
            ToolReader(tools) if tools is not None and not raw else None,
        )
        self._tokens: list[int] = []
        self._texts: dict[Channel, list[str]] = {"reasoning": [], "content": []}
        self.calls: list[GeneratedCall] = []
        self.answer_chars = 0  # characters of the answer published
        self.reasoning_tokens = 0  # accepted while in the reasoning channel, the close tag's included
        self.finish: FinishReason | None = None
        self.stop_string: str | None = None

    @property
    def token_ids(self) -> list[int]:
        return self._tokens

    @property
    def reasoning(self) -> str:
        return "".join(self._texts["reasoning"])

    @property
    def content(self) -> str:
        return "".join(self._texts["content"])

    @property
    def answer_passed(self) -> int:
        """Characters of the answer that no stop string can cut any more, markup included."""
        return self._decoder.passed

    @property
    def tool_report(self) -> ToolReport:
        return self._decoder.tools.report if self._decoder.tools is not None else ToolReport()

    @property
    def remaining(self) -> int:
        """Tokens the limit still allows."""
        return max(self._limit - len(self._tokens), 0)

    @property
    def in_reasoning(self) -> bool:
        return self._decoder.splitter.in_reasoning

    @property
    def closing(self) -> bool:
        """The last text may be the reasoning's close tag, or a part of it; what follows decides."""
        return self._decoder.splitter.closing

    def lower_limit(self, tokens: int) -> None:
        """End after ``tokens`` in all, if that is sooner."""
        self._limit = min(self._limit, tokens)

    def preview(self, tokens: Sequence[int]) -> Taken:
        """How much of a round counts, and the text it publishes. Changes nothing."""
        self._check_open()
        if len(tokens) == 1 and (plain := self._plain(tokens[0])) is not None:
            return plain
        decoder, out = self._decoder.copy(), _Out()
        stop_string: str | None = None
        finish: FinishReason | None = None
        kept = reasoning_tokens = 0
        marks: list[int | None] = []
        for token in tokens[: self.remaining]:
            kept += 1
            was_reasoning = decoder.splitter.in_reasoning
            if token in self._stop_ids:
                stop_string, finish = decoder.end(out), "stop_token"
                marks.append(None)
            else:
                stop_string = self._take(token, decoder, out, marks)
            reasoning_tokens += was_reasoning or decoder.splitter.in_reasoning
            if finish or stop_string is not None:
                break
        if not finish and stop_string is None and len(self._tokens) + kept >= self._limit:
            stop_string, finish = decoder.end(out), self._limit_finish
        if stop_string is not None:
            finish = "stop_string"
        if finish is not None:
            decoder.end_tools(out, cut=finish == self._limit_finish)
        return Taken(
            kept=kept,
            finish=finish,
            stop_string=stop_string,
            deltas=_merged(out.pieces),
            calls=tuple(out.calls),
            token_ids=tuple(tokens[:kept]),
            reasoning_tokens=reasoning_tokens,
            marks=tuple(marks),
            decoder=decoder,
            base=len(self._tokens),
        )

    def _plain(self, token: int) -> Taken | None:
        """The common round, without a copy of the state: one more token inside the answer, whole characters, nothing
        that could be held, and not the last."""
        decoder = self._decoder
        if not decoder.is_plain or token in self._stop_ids or len(self._tokens) + 1 >= self._limit:
            return None
        try:
            text = self._bytes(token).decode()
        except UnicodeDecodeError:
            return None
        return Taken(
            kept=1,
            finish=None,
            stop_string=None,
            deltas=(("content", text),) if text else (),
            calls=(),
            token_ids=(token,),
            reasoning_tokens=0,
            marks=(decoder.answer_chars,),
            decoder=None,
            base=len(self._tokens),
        )

    def commit(self, taken: Taken) -> None:
        """Make a preview real. It must be of the session as it is now."""
        self._check_open()
        if taken.base != len(self._tokens):
            raise InvariantError("an output preview was committed after another one")
        if taken.decoder is not None:
            self._decoder = taken.decoder
        else:
            self._decoder.go_on(sum(len(text) for _, text in taken.deltas))
        self._tokens.extend(taken.token_ids)
        self._publish(taken.deltas)
        self.calls += taken.calls
        self.reasoning_tokens += taken.reasoning_tokens
        self.finish, self.stop_string = taken.finish, taken.stop_string

    def flush(self) -> Deltas:
        """The held text, for an end without a finish (a cancelled request); empty after a finish or a second call.
        A call that is not complete then is dropped."""
        if self.finish is not None:
            return ()
        out = _Out()
        self.stop_string = self._decoder.end(out)
        self._decoder.end_tools(out, cut=True)
        self.finish = "cancelled"
        deltas = _merged(out.pieces)
        self._publish(deltas)
        return deltas

    def _take(self, token: int, decoder: _Decoder, out: _Out, marks: list[int | None]) -> str | None:
        """Feed one token, and mark where its text begins when it is part of the answer."""
        was_answering, begins = decoder.splitter.may_answer, decoder.answer_chars
        stop_string = decoder.take(self._bytes(token), out)
        answers = decoder.splitter.may_answer and (was_answering or decoder.answer_chars > begins)
        # behind the close tag the first part of a character can only be the answer's beginning
        answers = answers or (decoder.splitter.closed and decoder.stream.pending)
        marks.append(begins if answers else None)
        return stop_string

    def _publish(self, deltas: Deltas) -> None:
        for channel, text in deltas:
            self._texts[channel].append(text)
            self.answer_chars += len(text) if channel == "content" else 0

    def _bytes(self, token: int) -> bytes:
        return b"" if token in self._hidden else self._tokenizer.token_bytes(token)

    def _check_open(self) -> None:
        if self.finish is not None:
            raise InvariantError(f"the output has ended ({self.finish}) and takes no more tokens")


@dataclass(slots=True)
class _Out:
    """What one preview publishes."""

    pieces: Pieces = field(default_factory=list)
    calls: list[GeneratedCall] = field(default_factory=list)


class _Decoder:
    """The state between tokens: a part of a character, of a tag, of a stop string, of a call."""

    __slots__ = ("answer_chars", "free", "matchers", "passed", "splitter", "stream", "tools")

    def __init__(
        self,
        stream: TextStream,
        splitter: ChannelSplitter,
        matchers: dict[Channel, StopMatcher],
        tools: ToolReader | None,
        answer_chars: int = 0,
        passed: int = 0,
    ) -> None:
        self.stream, self.splitter, self.matchers, self.tools = stream, splitter, matchers, tools
        self.answer_chars = answer_chars  # characters of the answer seen, held ones included
        self.passed = passed  # of these, those that no stop string can cut any more
        self.free = matchers["content"].never_stops

    @property
    def is_plain(self) -> bool:
        """Text is answer as it comes: nothing is held, and nothing could be."""
        return self.tools is None and self.splitter.answers and self.free and not self.stream.pending

    def go_on(self, chars: int) -> None:
        """So many more characters of plain answer have come and passed."""
        self.answer_chars += chars
        self.passed += chars

    def copy(self) -> _Decoder:
        matchers = {channel: matcher.copy() for channel, matcher in self.matchers.items()}
        tools = None if self.tools is None else self.tools.copy()
        return _Decoder(self.stream.copy(), self.splitter.copy(), matchers, tools, self.answer_chars, self.passed)

    def take(self, data: bytes, out: _Out) -> str | None:
        """Append what these bytes publish; the stop string that ended the turn, if one did."""
        return self._match(self.splitter.feed(self.stream.feed(data)), out)

    def end(self, out: _Out) -> str | None:
        """The turn is over: publish what is held. Held text may still complete a stop string."""
        hit = self._match(self.splitter.feed(self.stream.finish()) + self.splitter.finish(), out)
        if hit is None:
            for channel, matcher in self.matchers.items():
                self._pass(channel, matcher.finish(), out)
        return hit

    def end_tools(self, out: _Out, *, cut: bool) -> None:
        """Settle what may be a call, once the text has ended."""
        if self.tools is not None:
            self._append(self.tools.finish(cut=cut), out)

    def _match(self, pieces: Pieces, out: _Out) -> str | None:
        for channel, text in pieces:
            if channel == "content":
                # the reasoning is over, so no stop string can complete in it
                self._pass("reasoning", self.matchers["reasoning"].finish(), out)
                self.answer_chars += len(text)
            text, hit = self.matchers[channel].feed(text)
            self._pass(channel, text, out)
            if hit is not None:
                return hit
        return None

    def _pass(self, channel: Channel, text: str, out: _Out) -> None:
        if channel == "content":
            self.passed += len(text)
            if self.tools is not None:
                self._append(self.tools.feed(text), out)
                return
        out.pieces.append((channel, text))

    @staticmethod
    def _append(read: Sequence[str | GeneratedCall], out: _Out) -> None:
        for piece in read:
            if isinstance(piece, str):
                out.pieces.append(("content", piece))
            else:
                out.calls.append(piece)


def hidden_ids(tokenizer: Tokenizer, reasoning: ReasoningSyntax | None) -> frozenset[int]:
    """The tokens without text: the tokenizer's ``special_ids``, except the reasoning tags."""
    special: frozenset[int] = getattr(tokenizer, "special_ids", frozenset())
    if reasoning is None:
        return special
    tags = (reasoning.open, reasoning.close)
    return special - {tokenizer.control_tokens[tag] for tag in tags if tag in tokenizer.control_tokens}


def _merged(pieces: Pieces) -> Deltas:
    merged: Pieces = []
    for channel, text in pieces:
        if not text:
            continue
        if merged and merged[-1][0] == channel:
            merged[-1] = (channel, merged[-1][1] + text)
        else:
            merged.append((channel, text))
    return tuple(merged)
