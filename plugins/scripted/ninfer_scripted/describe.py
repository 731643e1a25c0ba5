"""What ``ninfer inspect`` prints of a script."""

from __future__ import annotations

from ninfer_core.api import Checkpoint

from .script import Reply, Script, script_of

WIDTH = 100


def describe(checkpoint: Checkpoint) -> str:
    """The script, a paragraph a reply."""
    script = script_of(checkpoint)
    size, pieces = script.tokenizer.size, len(script.tokenizer.pieces)
    lines = [f"script {script.name}: {len(script.replies)} replies, {size} tokens ({pieces} from pieces)"]
    if script.prefill_delay_seconds:
        lines.append(f"  {script.prefill_delay_seconds * 1e3:g} ms per prefill unit")
    for reply in script.replies:
        lines += [f"  to {quoted(reply.match or '')}", *reply_lines(reply, script)]
    return "\n".join([*lines, "  to anything else", *reply_lines(script.default, script)])


def reply_lines(reply: Reply, script: Script) -> list[str]:
    tokenizer = script.tokenizer
    lines = [f"    says {quoted(tokenizer.spell(turn).decode('utf-8', 'replace'))}" for turn in reply.turns]
    facts = ["then stops" if reply.stops else "then repeats the last token"]
    if reply.delay_seconds:
        facts.append(f"{reply.delay_seconds * 1e3:g} ms per decode round")
    facts += [f"{key} {at}" for key, at in (("fail_at", reply.fail_at), ("nan_at", reply.nan_at)) if at is not None]
    for token, value in reply.logits.items():
        facts.append(f"logit of {quoted(tokenizer.spell([token]).decode('utf-8', 'replace'))} {value:g}")
    if reply.draft:
        facts.append("drafts " + ", ".join(map(str, reply.draft)))
    return [*lines, "    " + "; ".join(facts)]


def quoted(text: str) -> str:
    shown = text if len(text) <= WIDTH else text[:WIDTH] + "..."
    return '"' + shown.encode("unicode_escape").decode().replace('"', '\\"') + '"'
