"""Prompts that cannot fit, told apart before they are rendered or encoded whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from ninfer_core.api import ContextLengthExceeded, Message, Tool
from ninfer_core.api.families import Tokenizer

PIECE = 1 << 15  # characters that are counted at once
USUAL = 6  # characters for each token of the context; a text of up to so many is encoded at once
FAR = 4  # times the context: a count that has got there is not finished
DEFINITION = 8  # tokens of the shortest definition of a tool
JOINT = 16  # tokens that a cut between two pieces may add to their count


class LengthGuard:
    """Refuses texts that are too long for a context, at a bounded cost. Any thread may use it.

    A text of up to ``FAR`` contexts passes, for it is to be counted exactly; one beyond is refused with what was
    counted so far, or with what its size alone proves.
    """

    def __init__(self, tokenizer: Tokenizer, max_context: int) -> None:
        self._tokenizer, self._max_context = tokenizer, max_context
        self._longest: int | None = getattr(tokenizer, "longest_token", None)

    def check(self, text: str) -> None:
        """ContextLengthExceeded for a text that is part of the prompt."""
        self._check([text], len(text))

    def check_turns(self, messages: Sequence[Message], turn_tokens: int = 1) -> None:
        """The same of what users wrote, before it is rendered; templates take the white space around it away. A turn
        is a token at least, whatever it says, and about ``turn_tokens``."""
        self._check_many(len(messages), turn_tokens)
        texts = [message.text.strip() for message in messages if message.role == "user"]
        self._check(texts, sum(map(len, texts)))

    def check_tools(self, tools: Sequence[Tool], *, whole: bool = True) -> None:
        """The same of the definitions of tools; white space between their members is not shown. ``whole``: the rest
        is."""
        self._check_many(len(tools), DEFINITION)
        if whole and sum(len(tool.definition) for tool in tools) > USUAL * self._max_context:
            texts = [_compact(tool.definition) for tool in tools]
            self._check(texts, sum(map(len, texts)))

    def _check_many(self, count: int, each: int) -> None:
        """``count`` things of about ``each`` tokens, and of one token for sure."""
        if count > self._max_context and count * each > FAR * self._max_context:
            raise ContextLengthExceeded(count, self._max_context, at_least=True)

    def _check(self, texts: Sequence[str], size: int) -> None:
        most = self._max_context
        if size <= USUAL * most:
            return
        if self._longest is not None and size > self._longest * most:
            raise ContextLengthExceeded(-(-size // self._longest), most, at_least=True)
        counted = 0
        for piece in _pieces(texts):
            counted += max(len(self._tokenizer.encode_with_control(piece)) - JOINT, 0)
            if counted > FAR * most:
                raise ContextLengthExceeded(counted, most, at_least=True)


def _compact(definition: str) -> str:
    """JSON without white space between its members; as it is, when it is no JSON: whoever reads it refuses it."""
    try:
        return msgspec.json.format(definition, indent=-1)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return definition


def _pieces(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for at in range(0, len(text), PIECE):
            yield text[at : at + PIECE]
