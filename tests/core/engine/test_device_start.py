"""The start of an engine on its device: a rehearsal before the KV pool, the pool out of what is left, the ledger."""

from contextlib import nullcontext

import pytest
import torch
from engines import Driver, open_engine, text
from structlog.testing import capture_logs

from ninfer_core.api import Refusal, StartupError
from ninfer_core.api.nn import StepOutput
from ninfer_core.engine import device_start, sizing
from ninfer_core.engine.device_start import DeviceStart
from ninfer_core.engine.graphs import Shape, shapes
from ninfer_core.engine.ledger import MemoryReadings, full
from ninfer_core.engine.rehearsal import Rehearsal, some_rounds
from ninfer_core.kv.memory import is_shortage
from ninfer_core.kv.pages import pages_for
from ninfer_core.kv.state import StatePool
from ninfer_core.nn.loader import CheckpointWeights

CPU = torch.device("cpu")
SHORT = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough memory: you tried to"),
    MemoryError(),
]
"""How torch and Python say that memory does not suffice."""
SCRIPT = {"default": {"text": "Hello there."}}
MIB = 1 << 20


class Watched:
    """A model that looks at what it is given."""

    draft_source = None

    def __init__(self, records_steps, fails=False):
        self.records_steps, self.fails = records_steps, fails
        self.steps, self.folds = [], []

    def forward(self, step, cache, state):
        if self.fails:
            raise RuntimeError("no")
        self.steps.append(step)
        return StepOutput(logits=torch.zeros(len(step.logit_index), 9), records=len(self.steps))

    def fold(self, step, records, kept, state):
        assert step is self.steps[-1] and records == len(self.steps)
        self.folds.append(kept)


def rehearsal(model, slots=3):
    return Rehearsal(model, None, StatePool((), slots, CPU), CPU, pages=4, vocabulary=7)


@pytest.mark.parametrize("context", [256, 300, 4096])
def test_the_last_chunk_of_a_full_context_is_tried(context):
    model = Watched(records_steps=True)
    rehearsal(model).run(chunk=256, max_context=context, rounds=[])
    (step,) = model.steps
    assert step.frontiers == (context - 256,)
    assert step.positions.tolist() == list(range(context - 256, context))
    assert step.page_table.shape == (1, pages_for(context))
    assert not step.provisional and step.on_device is None
    assert step.logit_index.tolist() == [255]
    assert step.token_ids.min() >= 0 and step.token_ids.max() < 7
    for p, slot in zip(step.positions.tolist(), step.cache_slots.tolist(), strict=True):
        assert slot == int(step.page_table[0, p // 64]) * 64 + p % 64 < 4 * 64
    assert model.folds == []


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "step by step"])
def test_a_round_is_tried_as_the_engine_would_run_it(recorded):
    model = Watched(records_steps=recorded)
    trial = rehearsal(model)
    trial.decode(Shape(rows=3, width=2), 512)
    (step,) = model.steps
    assert step.starts == (0, 2, 4, 6)
    assert step.frontiers == (510,) * 3
    assert step.positions.tolist() == [510, 511] * 3
    assert step.provisional
    assert sorted(step.state_slots) == [0, 1, 2]
    assert step.logit_index.tolist() == list(range(6))
    (kept,) = model.folds
    if recorded:
        assert step.on_device.firsts.tolist() == [0, 2, 4]
        assert step.on_device.widths.tolist() == [2, 2, 2]
        assert step.on_device.frontiers.tolist() == [510] * 3
        assert step.on_device.state_slots.tolist() == list(step.state_slots)
        assert torch.equal(kept, torch.zeros(3, dtype=torch.int64))
    else:
        assert step.on_device is None
        assert kept == [0, 0, 0]


@pytest.mark.parametrize("fails", [False, True], ids=["well", "badly"])
def test_the_states_are_free_again_however_it_ends(fails):
    trial = rehearsal(Watched(records_steps=False, fails=fails))
    for part in (lambda: trial.prefill(64, 64), lambda: trial.decode(Shape(rows=2, width=1), 64)):
        if fails:
            with pytest.raises(RuntimeError, match="no"):
                part()
        else:
            part()
    assert trial._states.available == 3


def test_of_many_rounds_a_few_are_tried():
    assert some_rounds([]) == []
    found = some_rounds(shapes(6, 3))
    assert found == [Shape(rows=rows, width=width) for rows in (1, 2, 4, 6) for width in (1, 4)]
    assert len(some_rounds(shapes(256, 15))) == 18


@pytest.fixture
def rehearsing(monkeypatch):
    monkeypatch.setattr(DeviceStart, "_rehearses", True)


def test_a_rehearsal_leaves_no_trace_in_answers(tmp_path, rehearsing):
    driver = Driver(open_engine(tmp_path, SCRIPT, "--max-concurrency", "2"))
    generation = driver.submit("hi")
    driver.run()
    driver.check_at_rest()
    assert text(generation) == "Hello there."


def ledger_of(tmp_path, *flags):
    with capture_logs() as lines:
        engine = open_engine(tmp_path, SCRIPT, *flags)
    return engine, {line["event"]: line for line in lines}


@pytest.mark.contract("memory.ledger")
def test_the_ledger_of_a_start_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(device_start, "page_bytes", lambda geometry, dtype: MIB // 2)
    monkeypatch.setattr(sizing, "free_bytes", lambda device: 1034 * MIB)
    flags = ("--kv-capacity", "auto", "--max-concurrency", "3", "--max-context", "1000")
    engine, lines = ledger_of(tmp_path, *flags)
    memory, states = engine.memory, engine.worker.program.states
    state_bytes = sum(part.numel() * part.element_size() for part in states.parts.values())
    assert engine.limits.pool_pages == 20
    assert memory.kv_payload_bytes == 10 * MIB
    assert memory.kv_capacity_increment_bytes == MIB // 2
    assert memory.sequence == full(10 * MIB + state_bytes)
    assert memory.runtime_reservation_bytes == 10 * MIB + state_bytes
    assert memory.minimum_runtime_reservation_bytes == 8 * MIB + state_bytes
    assert memory.kv_capacity_headroom_bytes == 1024 * MIB
    slack = memory.available_after_weights_bytes - memory.runtime_reservation_bytes - 1024 * MIB
    assert memory.planned_slack_bytes == slack
    assert memory.host_state_image_bytes == states.image_bytes
    assert (memory.cuda_graph_allowance_bytes, memory.cuda_graph_measured_bytes) == (0, 0)
    assert memory.weights is None and memory.workspace is None  # nobody can tell on a CPU
    said = lines["memory"]
    assert said["log_level"] == "info"
    assert said["kv_pool_bytes"] == 10 * MIB
    assert said["state_pool_bytes"] == state_bytes
    assert said["free_bytes"] == memory.available_after_startup_bytes > 0
    assert lines["weights_loaded"]["host_to_device_bytes"] == 0
    assert engine.load_facts.load_seconds >= 0


def test_bytes_that_were_decoded_for_kernels_are_told_in_one_line(tmp_path, monkeypatch):
    assert "weights_decoded" not in ledger_of(tmp_path)[1]
    finish = CheckpointWeights.finish

    def finishing(loader):
        loader.decoded_bytes |= {"q6": 2 * MIB, "q4": MIB}
        return finish(loader)

    monkeypatch.setattr(CheckpointWeights, "finish", finishing)
    said = ledger_of(tmp_path)[1]["weights_decoded"]
    assert (said["formats"], said["device_bytes"]) == ("q4, q6", 3 * MIB)


def test_a_capacity_that_was_named_leaves_no_headroom(tmp_path):
    engine, _ = ledger_of(tmp_path, "--kv-capacity", "8192")
    assert engine.memory.kv_capacity_headroom_bytes == 0


NAMES = """weights sequence workspace minimum_runtime_reservation_bytes kv_capacity_increment_bytes
runtime_reservation_bytes available_after_weights_bytes available_after_startup_bytes kv_capacity_headroom_bytes
planned_slack_bytes cuda_graph_allowance_bytes cuda_graph_measured_bytes kv_payload_bytes host_state_capacity_slots
host_state_occupied_slots host_state_image_bytes host_kv_page_group_bytes host_cache_budget_bytes
host_kv_capacity_bytes host_kv_occupied_bytes"""


@pytest.mark.contract("memory.ledger")
def test_the_record_has_the_names_of_the_contract(tmp_path):
    record = ledger_of(tmp_path)[0].memory.record()
    assert sorted(record) == sorted(NAMES.split())
    assert sorted(record["sequence"]) == ["capacity_bytes", "peak_used_bytes", "used_bytes"]


@pytest.mark.contract("run.capacity-auto")
def test_what_a_step_takes_for_a_while_is_no_page(tmp_path, rehearsing, monkeypatch):
    def passing(self):
        self.workspace = 3 * MIB
        return nullcontext()

    monkeypatch.setattr(MemoryReadings, "passing_values", passing)
    monkeypatch.setattr(device_start, "page_bytes", lambda geometry, dtype: MIB // 2)
    monkeypatch.setattr(sizing, "free_bytes", lambda device: 1037 * MIB)
    flags = ("--kv-capacity", "auto", "--max-concurrency", "3", "--max-context", "1000")
    engine, _ = ledger_of(tmp_path, *flags)
    assert engine.limits.pool_pages == 20
    monkeypatch.setattr(sizing, "free_bytes", lambda device: 1034 * MIB)
    with pytest.raises(Refusal, match="of headroom and 3 MiB for recorded rounds and passing values, and the least"):
        open_engine(tmp_path, SCRIPT, *flags)


def test_a_rehearsal_that_does_not_fit_is_told_in_one_line(tmp_path, rehearsing, monkeypatch):
    def short(self, **_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(Rehearsal, "run", short)
    with pytest.raises(StartupError, match=r"out of memory on cpu: a prefill of 1024 tokens did not fit") as caught:
        open_engine(tmp_path, SCRIPT)
    assert "\n" not in str(caught.value) and "--prefill-chunk" in str(caught.value)


def test_an_allowance_for_rounds_that_are_not_recorded_is_told(tmp_path):
    with capture_logs() as lines:
        open_engine(tmp_path, SCRIPT, "--cuda-graph-allowance-mib", "7")
    (line,) = [line for line in lines if line["event"] == "option_without_effect"]
    assert line["option"] == "--cuda-graph-allowance-mib"


@pytest.mark.parametrize("error", SHORT, ids=repr)
@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("ninfer_core.engine.device_start.StatePool", "the states of 2 sequences"),
        ("ninfer_core.engine.device_start.KVCache", "a KV pool of 128 pages, .* MiB,"),
        ("ninfer_scripted.model.ScriptedModel.forward", "the first request"),
        ("ninfer_core.engine.lanes.LaneTable.admit", "the first request"),
    ],
    ids=["states", "pool", "warm-up", "admission"],
)
def test_whatever_does_not_fit_is_told_in_one_line_that_blames_nobody(tmp_path, monkeypatch, where, what, error):
    def short(*_, **__):
        raise error

    monkeypatch.setattr(where, short)
    with pytest.raises(StartupError, match=f"^out of memory on cpu: {what} did not fit, .* lower --max-context"):
        open_engine(tmp_path, SCRIPT)


def test_another_error_is_the_plugins(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(device_start, "KVCache", broken)
    with pytest.raises(StartupError, match="plugin 'kv_bf16' failed to open the KV storage 'bf16': RuntimeError"):
        open_engine(tmp_path, SCRIPT)


def test_the_allocator_of_a_cpu_says_what_is_looked_for():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_shortage(caught.value)


@pytest.mark.parametrize("error", SHORT, ids=repr)
def test_weights_that_do_not_fit_are_told_in_one_line_and_give_the_staging_back(tmp_path, monkeypatch, error):
    finished = []

    def short(self, *_):
        raise error

    monkeypatch.setattr("ninfer_scripted.model.ScriptedModel.__init__", short)
    finish = CheckpointWeights.finish
    monkeypatch.setattr(CheckpointWeights, "finish", lambda self: finished.append(1) or finish(self))
    with pytest.raises(StartupError, match="out of memory on cpu: the weights did not fit"):
        open_engine(tmp_path, SCRIPT)
    assert finished == [1]


@pytest.mark.contract("memory.graphs")
@pytest.mark.parametrize(("taken", "level"), [(70, "info"), (99, "warning")], ids=["within", "beyond"])
def test_what_recorded_rounds_took_is_told_beside_their_allowance(tmp_path, monkeypatch, taken, level):
    class Recorder:
        def __init__(self, *_, **__):
            pass

        def __len__(self):
            return 1

        def record(self, wanted):
            return taken * MIB

        def choose(self, rows, width):
            return None

    monkeypatch.setattr(device_start, "rounds_to_record", lambda *_: [Shape(rows=1, width=1)])
    monkeypatch.setattr(device_start, "DecodeGraphs", Recorder)
    engine, lines = ledger_of(tmp_path)
    told = lines["cuda_graphs"]
    assert (told["log_level"], told["allowance_bytes"], told["measured_bytes"]) == (level, 88 * MIB, taken * MIB)
    assert engine.memory.cuda_graph_allowance_bytes == 88 * MIB
    assert engine.memory.cuda_graph_measured_bytes == taken * MIB
    engine, _ = ledger_of(tmp_path, "--cuda-graph-allowance-mib", "7")
    assert engine.memory.cuda_graph_allowance_bytes == 7 * MIB
