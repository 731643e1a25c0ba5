"""The part of a start that takes memory of the device, in the order in which it is taken.

Weights; the states of the lanes; a rehearsal, which shows what a step needs for a while and which kernels it asks for;
block sizes of those kernels; the KV pool, out of what is left; recorded rounds. The ledger says what each of them got.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import structlog

from ninfer_core.api import Checkpoint, CopySource, KVDtype, ModelFamily, OptionValues, StartupError
from ninfer_core.api.nn import Model, Runtime
from ninfer_core.engine.device_profile import DeviceProfile
from ninfer_core.engine.engine import EngineLimits
from ninfer_core.engine.graphs import DecodeGraphs, Shape, shapes
from ninfer_core.engine.ledger import LoadFacts, MemoryLedger, MemoryReadings
from ninfer_core.engine.program import Program
from ninfer_core.engine.progress import Progress
from ninfer_core.engine.rehearsal import Rehearsal, some_rounds
from ninfer_core.engine.sizing import fill_memory, graph_allowance, rounds_to_record
from ninfer_core.engine.stats import HostClock
from ninfer_core.kv.cache import KVCache, page_bytes
from ninfer_core.kv.memory import free_bytes, is_shortage
from ninfer_core.kv.pages import pages_for
from ninfer_core.kv.state import StatePool
from ninfer_core.nn.loader import CheckpointWeights
from ninfer_core.plugins import Plugins
from ninfer_kernels import tuning

log = structlog.get_logger()


class DeviceStart:
    """One start of one model. ``load_weights``, then ``program``, then ``ledger`` when the engine is warm."""

    def __init__(
        self,
        family: ModelFamily,
        checkpoint: Checkpoint,
        runtime: Runtime,
        dtype: KVDtype,
        values: OptionValues,
        plugins: Plugins,
        progress: Progress,
    ) -> None:
        self._family, self._checkpoint, self._runtime, self._dtype = family, checkpoint, runtime, dtype
        self._values, self._plugins, self._progress = values, plugins, progress
        self._device = runtime.device
        self._readings = MemoryReadings(runtime.device)
        on_gpu = runtime.device.type == "cuda"
        self._profile = DeviceProfile(values, runtime.device, tuning.table(runtime.device) if on_gpu else None)
        self._geometry = family.kv_geometry(checkpoint.config)
        self._page = 0  # bytes
        self._least_pages = 0
        self._allowance = 0
        self._recorded_bytes = 0
        self.load_facts: LoadFacts | None = None

    def load_weights(self) -> Model:
        """Build the model; what was staged for the device is given back, also after a failure."""
        begin = time.monotonic()
        self._progress.stage("loading weights")
        self._profile.install()
        loader = CheckpointWeights(
            self._checkpoint, self._plugins.weight_formats, self._runtime, progress=self._progress.advance
        )
        try:
            with self._blaming("build a model of the family"), self.room("the weights"):
                model = self._family.build(self._checkpoint, loader, self._runtime)
        finally:
            uploads = loader.finish()
        self.load_facts = LoadFacts(
            bytes_read=loader.bytes_read,
            host_to_device_bytes=uploads.host_to_device_bytes,
            peak_staging_bytes=uploads.peak_staging_bytes,
            load_seconds=round(time.monotonic() - begin, 3),
            upload_seconds=round(uploads.upload_seconds, 3),
        )
        self._readings.weights_are_loaded()
        log.info("weights_loaded", **self.load_facts.fields())
        if loader.decoded_bytes:
            formats = ", ".join(sorted(loader.decoded_bytes))
            log.info("weights_decoded", formats=formats, device_bytes=sum(loader.decoded_bytes.values()))
        return model

    def program(
        self,
        model: Model,
        limits: EngineLimits,
        sources: Sequence[CopySource],
        rounds: Sequence[Shape] | None,
        vocabulary: int,
    ) -> tuple[Program, EngineLimits]:
        """The model with its pools and recorded rounds, and the limits with the pages there are.

        ``sources``: every drafter; ``rounds``: what is recorded if not what these lanes and drafters may come to need;
        ``vocabulary``: token ids a request may see.
        """
        self._progress.stage("allocating the KV pool")
        layout = self._family.state_layout(self._checkpoint.config, self._runtime)
        # one more than the lanes need, where a state takes memory: what is held of a prompt's beginning has one too
        slots = limits.max_concurrency + bool(layout)
        with self.room(f"the states of {slots} sequences"):
            states = StatePool(layout, slots, self._device)
        wanted = rounds_to_record(model, self._runtime, limits, sources, self._values, rounds)
        self._allowance = graph_allowance(len(wanted), self._values)
        self._page, self._least_pages = page_bytes(self._geometry, self._dtype), limits.pool_pages
        if self._rehearses:
            self._rehearse(model, states, limits, wanted or _all_rounds(limits, sources, rounds), vocabulary)
            self._profile.calibrate(self._progress)
            self._progress.stage("allocating the KV pool")
        if self._values["kv_capacity"] == "auto":
            # one page belongs to nobody: columns of a recorded round that have no token write there
            reserved = self._allowance + self._readings.workspace + self._page * bool(wanted)
            limits = fill_memory(limits, self._page, self._headroom, reserved, self._device)
        cache = self._cache(limits.pool_pages + bool(wanted))
        graphs = self._record(model, cache, states, limits, wanted, vocabulary) if wanted else None
        program = Program(
            model=model,
            cache=cache,
            states=states,
            device=self._device,
            public_tokens=vocabulary,
            clock=HostClock(),
            graphs=graphs,
        )
        return program, limits

    def ledger(self, program: Program, limits: EngineLimits) -> MemoryLedger:
        """What is held now that everything has run once; also a line of the log."""
        states = program.states
        ledger = self._readings.ledger(
            page_bytes=self._page,
            pages=limits.pool_pages + (program.graphs is not None),
            least_pages=self._least_pages,
            state_bytes=sum(part.numel() * part.element_size() for part in states.parts.values()),
            image_bytes=states.image_bytes,
            headroom=self._headroom if self._values["kv_capacity"] == "auto" else 0,
            allowance=self._allowance,
            graphs=self._recorded_bytes,
        )
        log.info("memory", **ledger.summary())
        return ledger

    @contextmanager
    def room(self, what: str) -> Iterator[None]:
        """Memory that does not suffice is nobody's fault but an option's."""
        try:
            yield
        except Exception as error:
            if not is_shortage(error):
                raise
            free = free_bytes(self._device) >> 20
            raise StartupError(
                f"out of memory on {self._device}: {what} did not fit, {free} MiB are free; lower --max-context, "
                "--kv-capacity, --max-concurrency or --prefill-chunk, or free what others hold there"
            ) from None

    @property
    def _rehearses(self) -> bool:
        """On a CPU nothing is learnt from it: no kernel is searched, and memory is taken as it is needed."""
        return self._device.type == "cuda"

    @property
    def _headroom(self) -> int:
        return int(self._values["kv_headroom_mib"]) << 20

    def _rehearse(
        self, model: Model, states: StatePool, limits: EngineLimits, rounds: Sequence[Shape], vocabulary: int
    ) -> None:
        self._progress.stage("trying the model out")
        chunk = min(self._values["prefill_chunk"], limits.max_context)
        cache = self._cache(pages_for(chunk))
        rehearsal = Rehearsal(model, cache, states, self._device, pages=cache.pages, vocabulary=vocabulary)
        tried = some_rounds(rounds)
        room = self.room(f"a prefill of {chunk} tokens")
        with self._blaming("run the family"), room, self._readings.passing_values():
            rehearsal.run(chunk=chunk, max_context=limits.max_context, rounds=tried)

    def _cache(self, pages: int) -> KVCache:
        blaming = self._plugins.blaming(self._plugins.kv_dtypes, self._dtype.name, "open the KV storage")
        with blaming, self.room(f"a KV pool of {pages} pages, {pages * self._page >> 20} MiB,"):
            return KVCache(self._geometry, self._dtype, pages, self._device, self._runtime.reference)

    def _record(
        self,
        model: Model,
        cache: KVCache,
        states: StatePool,
        limits: EngineLimits,
        wanted: Sequence[Shape],
        vocabulary: int,
    ) -> DecodeGraphs:
        self._progress.stage("recording decode rounds")
        graphs = DecodeGraphs(
            model,
            cache,
            states,
            self._device,
            lanes=limits.max_concurrency,
            pages=pages_for(limits.max_context),
            scratch_page=limits.pool_pages,
            public_tokens=vocabulary,
        )
        with self._blaming("record decode rounds of the family"):
            self._recorded_bytes = graphs.record(wanted)
        say = log.warning if self._recorded_bytes > self._allowance else log.info
        say(
            "cuda_graphs",
            count=len(graphs),
            allowance_bytes=self._allowance,
            measured_bytes=self._recorded_bytes,
        )
        return graphs

    def _blaming(self, what: str) -> AbstractContextManager[None]:
        return self._plugins.blaming(self._plugins.model_families, self._family.name, what)


def _all_rounds(limits: EngineLimits, sources: Sequence[CopySource], rounds: Sequence[Shape] | None) -> Sequence[Shape]:
    """What runs step by step where nothing is recorded."""
    return rounds or shapes(limits.max_concurrency, max((source.max_drafts for source in sources), default=0))
