"""The file of a device profile: what is read, what is refused and what is never written over."""

import fcntl
import json
import os
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.engine import profile_file
from ninfer_core.engine.profile_file import Device, Entry, Profile, Software, Unusable, add, merged, read, write
from ninfer_core.errors import ArtifactError
from ninfer_kernels.tuning import Measured

HERE = Device(name="NVIDIA Unheard Of", capability=(8, 6), multiprocessors=28)
SOFTWARE = Software(driver="13000", torch="2.11", triton="3.6", kernels="0.1+abc")
ENTRY = Entry(
    launch="linear.few_rows", shape={"N": 7, "K": 9}, blocks={"BN": 64}, microseconds=1.5, default_microseconds=2.0
)
PROFILE = Profile(device=HERE, software=SOFTWARE, entries=(ENTRY,))
KEY = ("linear.few_rows", (("N", 7), ("K", 9)))
FOUND = Measured(blocks={"BN": 16}, microseconds=1.0, default_microseconds=3.0, tried=4, failed=0)


def changed(**changes):
    """The profile as JSON with members replaced; None removes one."""
    whole = json.loads(msgspec.json.encode(PROFILE))
    for path, value in changes.items():
        *places, last = path.split("__")
        target = whole
        for place in places:
            target = target[int(place) if place.isdigit() else place]
        if value is None:
            del target[last]
        else:
            target[last] = value
    return json.dumps(whole).encode()


def test_what_is_written_is_read_again(tmp_path):
    path = tmp_path / "new" / "folder" / "profile.json"
    write(path, PROFILE)
    assert read(path, HERE, SOFTWARE) == PROFILE
    assert PROFILE.blocks() == {KEY: {"BN": 64}}
    assert os.listdir(path.parent) == ["profile.json"]


def test_no_file_is_no_profile(tmp_path):
    assert read(tmp_path / "missing.json", HERE, SOFTWARE) is None


DAMAGED = {
    "empty": b"",
    "cut short": changed()[:-9],
    "not JSON": b"\x00\xff" * 40,
    "another document": b'{"entries": []}',
    "a list": b"[1, 2]",
    "unknown member": changed(notes="mine"),
    "unknown member of an entry": changed(entries__0__speed=3),
    "missing member": changed(software=None),
    "another version": changed(version=2),
    "another format": changed(format="ninfer_profile"),
    "a block that is no whole number": changed(entries__0__blocks={"BN": 64.5}),
    "a block that is text": changed(entries__0__blocks={"BN": "64"}),
    "a capability of one number": changed(device__capability=[8]),
    "deep": b"[" * 5000,
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_not_this_servers(tmp_path, data):
    path = tmp_path / "profile.json"
    path.write_bytes(data)
    with pytest.raises(Unusable, match="damaged, or no device profile") as caught:
        read(path, HERE, SOFTWARE)
    assert not caught.value.ours


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("any") / "profile.json"
    path.write_bytes(data)
    with pytest.raises(Unusable):
        read(path, HERE, SOFTWARE)


@pytest.mark.parametrize(
    "device",
    [
        {"name": "NVIDIA H200"},
        {"capability": (9, 0)},
        {"multiprocessors": 30},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_profile_of_another_device_is_told_apart(tmp_path, device):
    write(tmp_path / "p.json", msgspec.structs.replace(PROFILE, device=msgspec.structs.replace(HERE, **device)))
    with pytest.raises(Unusable, match=r"of another device: .*; this is NVIDIA Unheard Of \(sm_86, 28 multi") as caught:
        read(tmp_path / "p.json", HERE, SOFTWARE)
    assert not caught.value.ours


@pytest.mark.parametrize("name", Software.__struct_fields__)
def test_a_profile_measured_with_other_software_is_stale(tmp_path, name):
    write(tmp_path / "p.json", PROFILE)
    with pytest.raises(Unusable, match=f"stale: measured with {name} .*; this is other") as caught:
        read(tmp_path / "p.json", HERE, msgspec.structs.replace(SOFTWARE, **{name: "other"}))
    assert caught.value.ours


def test_a_folder_a_pipe_and_an_endless_file_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", "/dev/zero", "a\0b"):
        with pytest.raises(Unusable):
            read(type(tmp_path)(path), HERE, SOFTWARE)


def test_a_file_larger_than_any_profile_is_not_read(tmp_path):
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(profile_file.MOST_BYTES + 1)
    with pytest.raises(Unusable, match="at most"):
        read(path, HERE, SOFTWARE)


@pytest.mark.parametrize("place", ["file/profile.json", "folder"])
def test_a_place_that_cannot_be_written_is_one_line(tmp_path, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ArtifactError, match=place.partition("/")[0]):
        write(tmp_path / place, PROFILE)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "p.json"
    write(path, PROFILE)

    def full(fd, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ArtifactError, match="no space left"):
        write(path, msgspec.structs.replace(PROFILE, entries=()))
    monkeypatch.undo()
    assert read(path, HERE, SOFTWARE) == PROFILE
    assert os.listdir(tmp_path) == ["p.json"]


@pytest.mark.parametrize("there", [True, False], ids=["there", "dangling"])
def test_a_link_stays_one_and_what_it_leads_to_is_written(tmp_path, there):
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real" / "p.json", tmp_path / "link.json"
    link.symlink_to("real/p.json")
    if there:
        real.write_text("")
    write(link, PROFILE)
    assert link.is_symlink() and not real.is_symlink()
    assert read(real, HERE, SOFTWARE) == PROFILE


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_a_file_that_is_replaced_keeps_who_may_read_it(tmp_path, mode):
    path = tmp_path / "p.json"
    path.write_text("")
    path.chmod(mode)
    write(path, PROFILE)
    assert path.stat().st_mode & 0o777 == mode
    assert read(path, HERE, SOFTWARE) == PROFILE


def test_what_replaces_anothers_file_is_not_hidden_from_him(tmp_path, monkeypatch):
    path = tmp_path / "p.json"
    path.write_text("")
    path.chmod(0o600)
    monkeypatch.setattr("os.geteuid", lambda: path.stat().st_uid + 1)
    before = os.umask(0o022)
    try:
        write(path, PROFILE)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644


def test_without_a_working_folder_a_relative_path_is_told_as_any_other(monkeypatch):
    def gone(path):
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr("os.path.realpath", gone)
    assert profile_file._target(Path("p.json")) == Path("p.json")


def test_what_keeps_a_file_from_being_stored_shows_before(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    assert profile_file.obstacle(tmp_path / "new" / "folder" / "p.json") is None
    assert profile_file.obstacle(tmp_path / "file") is None
    assert profile_file.obstacle(tmp_path / "file" / "p.json") == f"{tmp_path}/file: is no folder"
    assert profile_file.obstacle(tmp_path) == f"{tmp_path}: is a folder"
    for odd in ("a\0b", "n" * 5000):
        assert profile_file.obstacle(type(tmp_path)(odd)) is None
    monkeypatch.setattr(os, "access", lambda path, how: False)
    assert profile_file.obstacle(tmp_path / "new" / "p.json") == f"{tmp_path}: cannot be written"


def test_those_who_store_at_the_same_time_wait_for_each_other(tmp_path):
    path = tmp_path / "p.json"
    shapes = range(8)

    def store(n):
        add(path, HERE, SOFTWARE, {("linear.few_rows", (("N", n),)): FOUND}, own=False)

    threads = [threading.Thread(target=store, args=(n,)) for n in shapes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(entry.shape["N"] for entry in read(path, HERE, SOFTWARE).entries) == list(shapes)
    assert os.listdir(tmp_path) == ["p.json"]


def test_a_lock_that_is_never_given_back_stops_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(profile_file, "LOCK_SECONDS", 0)
    fd = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    add(tmp_path / "p.json", HERE, SOFTWARE, {KEY: FOUND}, own=False)
    os.close(fd)
    assert read(tmp_path / "p.json", HERE, SOFTWARE).blocks() == {KEY: {"BN": 16}}


def test_a_file_system_without_locks_is_written_all_the_same(tmp_path, monkeypatch):
    def unsupported(fd, how):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    add(tmp_path / "p.json", HERE, SOFTWARE, {KEY: FOUND}, own=False)
    assert read(tmp_path / "p.json", HERE, SOFTWARE).blocks() == {KEY: {"BN": 16}}


@pytest.mark.parametrize("own", [True, False])
def test_only_an_own_file_is_written_over_whatever_it_is(tmp_path, own):
    path = tmp_path / "p.json"
    path.write_text("{")
    if own:
        add(path, HERE, SOFTWARE, {KEY: FOUND}, own=True)
        assert read(path, HERE, SOFTWARE).blocks() == {KEY: {"BN": 16}}
    else:
        with pytest.raises(Unusable, match="damaged"):
            add(path, HERE, SOFTWARE, {KEY: FOUND}, own=False)
        assert path.read_text() == "{"


def test_new_measurements_replace_old_ones_of_their_shape():
    other = msgspec.structs.replace(ENTRY, shape={"N": 8, "K": 9})
    after = merged(msgspec.structs.replace(PROFILE, entries=(ENTRY, other)), HERE, SOFTWARE, {KEY: FOUND})
    assert after.blocks() == {KEY: {"BN": 16}, ("linear.few_rows", (("N", 8), ("K", 9))): {"BN": 64}}
    assert merged(None, HERE, SOFTWARE, {KEY: FOUND}).blocks() == {KEY: {"BN": 16}}


def test_the_user_cache_has_a_file_per_kind_of_device(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert profile_file.default_path(HERE) == tmp_path / "ninfer/device-profiles/nvidia-unheard-of-sm86-28.json"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert profile_file.default_path(HERE).parent == tmp_path / ".cache/ninfer/device-profiles"


def test_a_user_without_a_home_has_no_place(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(profile_file.Path, "home", homeless)
    assert profile_file.default_path(HERE) is None


def test_this_software_is_named_and_its_kernels_are_digested():
    found = profile_file.of_software()
    assert found == profile_file.of_software()
    assert "+" in found.kernels
