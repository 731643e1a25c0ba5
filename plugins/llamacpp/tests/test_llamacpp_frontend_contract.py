"""The core's contract for frontends."""

from __future__ import annotations

from typing import ClassVar

from ninfer_core.api import ChatJob, Engine, Frontend, Message, OptionValues, Part
from ninfer_core.api.http import decode_now
from ninfer_core.testing import FakeContext, FakeEngine, ProtocolFrontendContract
from ninfer_llamacpp import ninfer_protocol_frontends


class ReadingContext(FakeContext):
    """Reads a chat body the way another frontend would."""

    async def read_chat(self, body: bytes) -> tuple[Engine, ChatJob]:
        import msgspec

        class Body(msgspec.Struct):
            messages: list[str]
            model: str | None = None

        found = decode_now(body, msgspec.json.Decoder(Body))
        turns = tuple(Message(role="user", content=(Part(text=text),)) for text in found.messages)
        return self.engine(found.model), ChatJob(messages=turns)


RERANK = {"query": "q", "documents": ["a", {"text": "b"}], "model": "fake", "top_n": 1, "return_documents": True}
TEI = {"query": "q", "texts": ["a", "b"], "model": "fake", "return_text": True, "instruction": "i"}


class TestLlamaCpp(ProtocolFrontendContract):
    frontend = ninfer_protocol_frontends()[0]
    bodies: ClassVar = {
        "/completion": {"prompt": "The capital of France is", "n_predict": 4, "model": "fake", "stop": ["\n"]},
        "/completions": {"prompt": [84, "he"], "temperature": 0, "seed": 1},
        "/tokenize": {"content": "hi", "with_pieces": True, "model": "fake"},
        "/detokenize": {"tokens": [104, 105], "model": "fake"},
        "/apply-template": {"messages": ["hi"], "model": "fake"},
        "/v1/rerank": RERANK,
        "/v1/reranking": RERANK,
        "/rerank": TEI,
        "/reranking": TEI,
        "/models/load": {"model": "fake"},
    }
    refusing = frozenset({"/slots/{id_slot}", "/models/unload", "/models/sleep"})
    params: ClassVar = {"id_slot": "0"}
    endless = frozenset({"/models/sse"})
    streaming = frozenset({"/completion", "/completions"})

    def opened(self, engine: FakeEngine | None = None) -> Frontend:
        context = ReadingContext(engine or FakeEngine(), OptionValues({}, frozenset()))
        return self.frontend.open(context)
