"""Which reply answers a prompt, and which of its tokens comes next: pure functions of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .script import Reply, Script
from .tokenizer import IM_END, IM_START, THINK, THINK_END, ScriptedTokenizer

WHITE_SPACE = frozenset(b" \t\r\n")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The tokens that answer one prompt, the stop token included; after the last one it repeats."""

    reply: Reply
    tokens: tuple[int, ...]
    close_id: int  # the token </think>

    @property
    def after_thought(self) -> int:
        """The index of the first token after the reply's own ``</think>``; the last token's when there is none."""
        after = self.tokens.index(self.close_id) + 1 if self.close_id in self.tokens else len(self.tokens)
        return min(after, len(self.tokens) - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """A place in a plan after ``produced`` tokens of output."""

    plan: Plan
    at: int = 0  # index into plan.tokens; stays on the last one
    produced: int = 0
    closed_early: bool = False  # just after a </think> the script did not write

    @property
    def token(self) -> int:
        """The scripted next token."""
        return self.plan.tokens[self.at]

    def follow(self, token: int) -> Cursor:
        """The place after ``token`` was put out, scripted or not.

        Any other token takes the place of the scripted one. A ``</think>`` that was put in (a thinking budget) leads
        to what the script says after its own, and white space put in behind it takes no place.
        """
        if token == self.plan.close_id and token != self.token:
            return replace(self, at=self.plan.after_thought, produced=self.produced + 1, closed_early=True)
        if self.closed_early and token in WHITE_SPACE and token != self.token:
            return replace(self, produced=self.produced + 1)
        at = min(self.at + 1, len(self.plan.tokens) - 1)
        return Cursor(plan=self.plan, at=at, produced=self.produced + 1)


def start(script: Script, prompt_ids: Sequence[int]) -> Cursor:
    """The first token that answers a whole prompt."""
    prompt = read_prompt(script.tokenizer, prompt_ids)
    reply = next((r for r in script.replies if r.match is not None and r.match in prompt.text), script.default)
    tokens = reply.turns[min(prompt.assistant_turns, len(reply.turns) - 1)]
    rest = without_opener(script.tokenizer, tokens, prompt.openers)
    if reply.stops:
        rest = (*rest, script.tokenizer.control_tokens[IM_END])
    # a reply that never stops repeats its last token even when the prompt holds all of it
    close = script.tokenizer.control_tokens[THINK_END]
    return Cursor(plan=Plan(reply=reply, tokens=rest or tokens[-1:], close_id=close))


def resume(script: Script, token_ids: Sequence[int], prompt_tokens: int | None) -> Cursor:
    """The place after some tokens of which the first ``prompt_tokens`` are the prompt (None: nobody knows)."""
    end = prompt_end(script, token_ids) if prompt_tokens is None else min(prompt_tokens, len(token_ids))
    cursor = start(script, token_ids[:end])
    for token in token_ids[end:]:
        cursor = cursor.follow(token)
    return cursor


def prompt_end(script: Script, token_ids: Sequence[int]) -> int:
    """Where a prompt of unknown length ends: behind the open assistant turn's own opening, and in a text without turns
    in front of what already begins the reply."""
    prompt = read_prompt(script.tokenizer, token_ids)
    if prompt.is_chat:
        return len(token_ids) - len(prompt.openers[-1]) if prompt.openers else len(token_ids)
    tokens = start(script, token_ids).plan.tokens
    longest = min(len(tokens), len(token_ids))
    sizes = range(longest, -1, -1)
    return len(token_ids) - next(n for n in sizes if tuple(token_ids[len(token_ids) - n :]) == tokens[:n])


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    is_chat: bool
    text: str  # of the last user turn or tool results; of all of it when there are no turns
    assistant_turns: int  # closed ones
    openers: tuple[tuple[int, ...], ...]  # what the open assistant turn holds: all of it, and behind its think block


def read_prompt(tokenizer: ScriptedTokenizer, token_ids: Sequence[int]) -> Prompt:
    """Take a prompt apart into its turns."""
    begin, end = tokenizer.control_tokens[IM_START], tokenizer.control_tokens[IM_END]
    starts = [i for i, token in enumerate(token_ids) if token == begin]
    if not starts:
        return Prompt(is_chat=False, text=as_text(tokenizer, token_ids), assistant_turns=0, openers=())
    user, assistant_turns = "", 0
    openers: tuple[tuple[int, ...], ...] = ()
    for first, last in zip(starts, [*starts[1:], len(token_ids)], strict=True):
        turn = token_ids[first + 1 : last]
        closed = end in turn
        role, _, body = partition(turn[: list(turn).index(end)] if closed else turn)
        match as_text(tokenizer, role):
            case "user":
                user = user_text(as_text(tokenizer, body))
            case "assistant" if closed:
                assistant_turns += 1
            case "assistant":
                openers = (tuple(body), tuple(body[think_block(tokenizer, body) :]))
    return Prompt(is_chat=True, text=user, assistant_turns=assistant_turns, openers=openers)


def partition(turn: Sequence[int]) -> tuple[Sequence[int], int, Sequence[int]]:
    """A turn's role line and the rest."""
    at = next((i for i, token in enumerate(turn) if token == ord("\n")), len(turn))
    return turn[:at], at, turn[at + 1 :]


def think_block(tokenizer: ScriptedTokenizer, body: Sequence[int]) -> int:
    """The length of the opening the template wrote into an assistant turn."""
    for opening in (f"{THINK}\n\n{THINK_END}\n\n", f"{THINK}\n"):
        tokens = tokenizer.encode_with_control(opening)
        if list(body[: len(tokens)]) == tokens:
            return len(tokens)
    return 0


def user_text(text: str) -> str:
    """A user turn's text; of a turn of tool results, the results."""
    inner = text.strip()
    if inner.startswith("<tool_response>") and inner.endswith("</tool_response>"):
        return inner.replace("<tool_response>", "").replace("</tool_response>", "")
    return text


def as_text(tokenizer: ScriptedTokenizer, token_ids: Sequence[int]) -> str:
    return tokenizer.spell(token_ids).decode("utf-8", "replace")


def without_opener(
    tokenizer: ScriptedTokenizer, tokens: tuple[int, ...], openers: Sequence[tuple[int, ...]]
) -> tuple[int, ...]:
    """A reply without what the prompt already holds of it; a token cut in two goes on in bytes."""
    spelled = tokenizer.spell(tokens)
    for opener in openers:
        skip = len(tokenizer.spell(opener))
        if skip and spelled.startswith(tokenizer.spell(opener)):
            for i, token in enumerate(tokens):
                size = len(tokenizer.token_bytes(token))
                if size > skip:
                    return (*tokenizer.token_bytes(token)[skip:], *tokens[i + 1 :]) if skip else tokens[i:]
                skip -= size
            return ()
    return tokens
