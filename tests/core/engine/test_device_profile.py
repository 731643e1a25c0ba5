"""--device-profile: which block sizes a start takes, when it searches, and what it never does to a file."""

import json

import msgspec
import pytest
import torch
from structlog.testing import capture_logs

from ninfer_core.api import OptionValues, Refusal
from ninfer_core.engine import device_profile, profile_file
from ninfer_core.engine.device_profile import DeviceProfile
from ninfer_core.engine.options import OPTIONS
from ninfer_core.engine.profile_file import Entry, Profile
from ninfer_core.engine.progress import Silent
from ninfer_kernels import linear, tuning
from ninfer_kernels.tuning import Facts, Measured, Table, Tunable

CPU = torch.device("cpu")
UNKNOWN = Facts(name="Unheard Of", capability=(8, 6), multiprocessors=28, shared_bytes=99 << 10, cache_bytes=3 << 20)
KNOWN = Facts(name="NVIDIA H200", capability=(9, 0), multiprocessors=132, shared_bytes=227 << 10, cache_bytes=50 << 20)
SHAPE = (("N", 7),)
KEY = ("test.launch", SHAPE)
LAUNCH = Tunable(
    name="test.launch",
    default=lambda shape, facts: {"BN": 8},
    candidates=lambda shape, facts: ({"BN": size} for size in (8, 16, 32)),
    inputs=lambda shape, device, generator: (),
    run=lambda inputs, blocks: torch.zeros(1),
    built_in={"NVIDIA H200": lambda shape, facts: {"BN": 32}},
)


class Search:
    """Stands in for the search: finds 16 for everything, or does what it is told."""

    def __init__(self, monkeypatch):
        self.asked: list[list] = []
        self.seconds: list[float] = []
        self.found = {"BN": 16}
        self.error: Exception | None = None
        self.undecided: set = set()  # keys the time does not suffice for
        self.meanwhile = lambda: None  # what others do while it runs
        monkeypatch.setattr(tuning, "search", self)
        monkeypatch.setattr(device_profile.time, "monotonic", lambda: 100.0)

    def __call__(self, choices, facts, device, *, deadline, neighbour, advance):
        assert neighbour is linear.neighbour
        keys = [key for key, _ in choices]
        self.asked.append(keys)
        self.seconds.append(deadline - 100.0)
        if self.error is not None:
            raise self.error
        advance(1, 1)
        one = Measured(blocks=self.found, microseconds=1.0, default_microseconds=2.0, tried=2, failed=0)
        self.meanwhile()
        return {key: one for key in keys if key not in self.undecided}


@pytest.fixture
def search(monkeypatch):
    return Search(monkeypatch)


@pytest.fixture
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def options(mode=None, path=None):
    given = {}
    if mode is not None:
        given["device_profile"] = mode
    if path is not None:
        given["device_profile_path"] = str(path)
    defaults = {option.key: option.default for option in OPTIONS if option.key.startswith("device_profile")}
    return OptionValues({**defaults, **given}, frozenset(given))


def start(mode=None, path=None, facts=UNKNOWN, shapes=(SHAPE,), table=None):
    """What a start does: install, launches, calibrate. The table and the log."""
    table = table or Table(facts)
    with capture_logs() as lines:
        profile = DeviceProfile(options(mode, path), CPU, table)
        profile.install()
        for shape in shapes:
            table.blocks(LAUNCH, shape)
        profile.calibrate(Silent())
    return table, lines


def events(lines, name):
    return [line for line in lines if line["event"] == name]


def blocks(table, shape=SHAPE):
    return dict(table.blocks(LAUNCH, shape))


@pytest.mark.contract("options.device-profile")
def test_an_unknown_device_is_calibrated_and_remembered(home, search):
    table, lines = start()
    assert search.asked == [[KEY]]
    assert blocks(table) == {"BN": 16}
    (told,) = events(lines, "device_calibration")
    assert (told["log_level"], told["shapes"], told["changed"], told["undecided"]) == ("info", 1, 1, 0)
    (path,) = (home / "cache/ninfer/device-profiles").iterdir()
    assert path.name == "unheard-of-sm86-28.json"

    again, lines = start()
    assert search.asked == [[KEY]]
    assert blocks(again) == {"BN": 16}
    (told,) = events(lines, "device_profile")
    assert (told["log_level"], told["source"], told["shapes"], told["path"]) == ("info", "profile", 1, str(path))


@pytest.mark.contract("options.device-profile")
def test_a_device_with_a_built_in_profile_is_not_searched(home, search):
    table, lines = start(facts=KNOWN)
    assert search.asked == []
    assert blocks(table) == {"BN": 32}
    assert events(lines, "device_profile")[0]["source"] == "built-in"
    assert not (home / "cache").exists()


@pytest.mark.contract("options.device-profile")
@pytest.mark.parametrize("facts", [KNOWN, UNKNOWN], ids=["known", "unknown"])
def test_off_takes_the_compiled_blocks_and_reads_nothing(home, search, facts):
    start("calibrate", facts=facts)
    table, lines = start("off", facts=facts)
    assert len(search.asked) == 1
    assert blocks(table) == {"BN": 8}
    assert events(lines, "device_profile")[0]["source"] == "default"


@pytest.mark.contract("options.device-profile")
@pytest.mark.parametrize("facts", [KNOWN, UNKNOWN], ids=["known", "unknown"])
def test_calibrate_measures_anew_whatever_is_there(home, search, facts):
    start("calibrate", facts=facts)
    search.found = {"BN": 32}
    table, _ = start("calibrate", facts=facts)
    assert search.asked == [[KEY], [KEY]]
    assert blocks(table) == {"BN": 32}
    assert blocks(start(facts=facts)[0]) == {"BN": 32}


def test_a_search_nobody_asked_for_is_short(home, search):
    start()
    start("calibrate")
    assert search.seconds[0] <= 20 < search.seconds[1] <= 120


def test_only_shapes_the_profile_has_not_are_searched_later(home, search):
    other = (("N", 9),)
    start()
    start(shapes=(SHAPE, other))
    assert search.asked == [[KEY], [("test.launch", other)]]
    assert len(json.loads(next((home / "cache").rglob("*.json")).read_bytes())["entries"]) == 2


def stored(path):
    return [entry["shape"]["N"] for entry in json.loads(path.read_bytes())["entries"]]


def test_two_starts_that_calibrate_at_once_lose_nothing(search, tmp_path):
    path = tmp_path / "mine.json"

    def another_start():
        search.meanwhile = lambda: None
        start(path=path, shapes=((("N", 9),),))

    search.meanwhile = another_start
    start(path=path)
    assert stored(path) == [9, 7]


@pytest.mark.parametrize("mode", ["auto", "calibrate"])
@pytest.mark.parametrize("appeared", ["damaged", "foreign", "stale"])
def test_a_file_that_appears_during_a_search_is_judged_as_one_that_was_there(search, tmp_path, appeared, mode):
    data, _, replaced = IGNORED[appeared]
    path = tmp_path / "mine.json"
    search.meanwhile = lambda: path.write_bytes(data)
    table, lines = start(mode, path=path)
    assert blocks(table) == {"BN": 16}
    assert (path.read_bytes() == data) is not replaced
    assert len(events(lines, "device_profile_unsaved")) == (not replaced)


OTHER = (("N", 9),)


@pytest.mark.parametrize("failure", ["time", "error"])
def test_shapes_a_calibration_did_not_get_to_run_with_what_the_file_keeps_of_them(home, search, failure):
    start(shapes=(SHAPE, OTHER))
    search.found = {"BN": 32}
    search.undecided = {("test.launch", OTHER)}
    search.error = RuntimeError("CUDA error") if failure == "error" else None
    table, _ = start("calibrate", shapes=(SHAPE, OTHER))
    assert blocks(table) == {"BN": 32 if failure == "time" else 16}
    assert blocks(table, OTHER) == {"BN": 16}
    again, _ = start(shapes=(SHAPE, OTHER))
    assert [blocks(again, shape) for shape in (SHAPE, OTHER)] == [blocks(table, shape) for shape in (SHAPE, OTHER)]


def test_shapes_asked_for_after_a_calibration_run_with_what_the_file_has_of_them(home, search):
    start(shapes=(SHAPE, OTHER))
    table, _ = start("calibrate")
    assert blocks(table, OTHER) == blocks(start()[0], OTHER) == {"BN": 16}


def test_what_a_file_keeps_that_is_no_candidate_is_not_run(search, tmp_path):
    path = tmp_path / "mine.json"
    (entry,) = of_this_device().entries
    odd = msgspec.structs.replace(entry, blocks={"BN": 24})
    path.write_bytes(msgspec.json.encode(of_this_device(entries=(odd,))))
    search.undecided = {KEY}
    assert blocks(start("calibrate", path=path)[0]) == {"BN": 8}


def test_a_calibration_leaves_what_an_engine_runs_with(home, search):
    start()
    table, _ = start("off")
    start("calibrate", table=table)
    assert blocks(table) == {"BN": 8}


def test_shapes_an_engine_runs_with_are_left_alone_by_the_next_start(home, search):
    table, _ = start("off")
    start("calibrate", table=table)
    assert search.asked == []
    assert blocks(table) == {"BN": 8}


def test_a_search_that_fails_stops_no_start(home, search):
    search.error = RuntimeError("CUDA error: launch failure")
    table, lines = start()
    assert blocks(table) == {"BN": 8}
    (told,) = events(lines, "device_calibration_failed")
    assert (told["log_level"], told["error"]) == ("warning", "RuntimeError")


@pytest.mark.contract("options.device-profile.path")
def test_a_named_file_takes_the_place_of_the_cache(home, search, tmp_path):
    path = tmp_path / "sub" / "mine.json"
    start(path=path)
    assert path.exists()
    assert not (home / "cache").exists()
    assert blocks(start(path=path)[0]) == {"BN": 16}


def of_this_device(**changes):
    profile = Profile(
        device=profile_file.of_device(UNKNOWN),
        software=profile_file.of_software(),
        entries=(
            Entry(launch="test.launch", shape={"N": 7}, blocks={"BN": 32}, microseconds=1.0, default_microseconds=2.0),
        ),
    )
    return msgspec.structs.replace(profile, **changes)


IGNORED = {
    "damaged": (b"{", "damaged, or no device profile", False),
    "foreign": (
        msgspec.json.encode(of_this_device(device=profile_file.of_device(KNOWN))),
        "of another device: NVIDIA H200",
        False,
    ),
    "stale": (
        msgspec.json.encode(
            of_this_device(software=msgspec.structs.replace(profile_file.of_software(), kernels="older"))
        ),
        "stale: measured with kernels older",
        True,
    ),
}


@pytest.mark.contract("log.engine.profile")
@pytest.mark.parametrize(("data", "reason", "replaced"), IGNORED.values(), ids=IGNORED)
def test_a_profile_that_cannot_be_used_is_one_warning_and_only_an_old_own_one_is_replaced(
    search, tmp_path, data, reason, replaced
):
    path = tmp_path / "mine.json"
    path.write_bytes(data)
    table, lines = start(path=path)
    (told,) = events(lines, "device_profile_ignored")
    assert told["log_level"] == "warning"
    assert told["path"] == str(path)
    assert told["reason"].startswith(reason)
    assert blocks(table) == {"BN": 16}  # searched: the device has none
    assert (path.read_bytes() == data) is not replaced
    unsaved = events(lines, "device_profile_unsaved")
    assert len(unsaved) == (not replaced)
    if unsaved:
        assert "--device-profile-path" in unsaved[0]["reason"]


def test_a_damaged_file_of_the_cache_is_replaced(home, search):
    start()
    (path,) = (home / "cache").rglob("*.json")
    path.write_bytes(b"{")
    table, lines = start()
    assert len(events(lines, "device_profile_ignored")) == 1
    assert not events(lines, "device_profile_unsaved")
    assert blocks(table) == {"BN": 16}
    assert blocks(start()[0]) == {"BN": 16}


@pytest.mark.contract("log.engine.profile")
@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("file/profile.json", "is no folder"),
        ("file/sub/profile.json", "is no folder"),
        ("folder", "is a folder"),
        ("damaged.json", "no profile of this device"),
    ],
)
def test_a_place_that_cannot_be_written_is_one_warning(search, tmp_path, place, reason):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "damaged.json").write_text("{")
    table, lines = start(path=tmp_path / place)
    assert blocks(table) == {"BN": 16}
    (told,) = events(lines, "device_profile_unsaved")
    assert told["log_level"] == "warning" and reason in told["reason"]
    order = [line["event"] for line in lines]
    assert order.index("device_profile_unsaved") < order.index("device_calibration")


def test_a_user_without_a_home_is_told_before_the_search(search, monkeypatch):
    monkeypatch.setattr(profile_file, "default_path", lambda device: None)
    _, lines = start()
    assert [line["event"] for line in lines][1:] == ["device_profile_unsaved", "device_calibration"]


def test_a_disk_that_is_full_is_told_after_the_search(search, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(profile_file.os, "write", full)
    _, lines = start(path=tmp_path / "mine.json")
    assert [line["event"] for line in lines][1:] == ["device_calibration", "device_profile_unsaved"]


@pytest.mark.parametrize("mode", [None, "auto", "off", "calibrate"])
def test_without_a_gpu_the_option_says_that_it_has_nothing_to_do(search, tmp_path, mode):
    with capture_logs() as lines:
        profile = DeviceProfile(options(mode, None), CPU, None)
        profile.install()
        profile.calibrate(Silent())
    assert search.asked == []
    assert [(line["event"], line["source"]) for line in lines] == ([("device_profile", "none")] if mode else [])


def test_a_file_that_nobody_would_read_is_refused(tmp_path):
    with pytest.raises(Refusal, match="--device-profile-path has no effect with --device-profile off"):
        DeviceProfile(options("off", tmp_path / "mine.json"), CPU, None)


def test_other_modes_are_refused():
    (option,) = (option for option in OPTIONS if option.key == "device_profile")
    with pytest.raises(ValueError, match="auto"):
        option.parse("fast")
