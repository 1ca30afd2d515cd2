"""The keeper's decisions and its registry, as functions of plain data."""

from __future__ import annotations

import json
import os
import stat
import uuid
from pathlib import Path

import pytest

from kernelbox.keeper import decisions
from kernelbox.keeper.registry import Grave, Registry, load
from kernelbox.keeper.roots import RootKey, fingerprint, key_for, package_folders

ONE, TWO = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))


def entry(kernel_id: str, name: str, used: float = 0.0) -> dict[str, object]:
    return {"kernel_id": kernel_id, "name": name, "last_used_at": used, "epoch": 1}


def request(environ: dict[str, str], preload: tuple[str, ...] = ()) -> dict[str, object]:
    return {
        "executable": "/bin/python",
        "package_parent": "/src",
        "environ": environ,
        "settings": {"preload": list(preload)},
    }


# -- who is idle ----------------------------------------------------------------------------


def test_kernels_are_asked_when_their_own_limit_has_passed() -> None:
    kernels = {"a": entry("a", "a", 100), "b": entry("b", "b", 100), "c": entry("c", "c", 100)}
    limits = {"a": 10.0, "b": 50.0, "c": 0.0}
    assert decisions.maybe_idle(kernels, limits, 109) == []
    assert decisions.maybe_idle(kernels, limits, 110) == ["a"]
    assert decisions.maybe_idle(kernels, limits, 1000) == ["a", "b"]


def test_the_next_look_is_when_the_first_may_be_idle() -> None:
    kernels = {"a": entry("a", "a", 100), "b": entry("b", "b", 105)}
    assert decisions.next_idle_check(kernels, {"a": 30.0, "b": 10.0}, 106) == 9
    assert decisions.next_idle_check(kernels, {"a": 0.0, "b": 0.0}, 106) is None
    assert decisions.next_idle_check(kernels, {}, 106) is None
    overdue = decisions.next_idle_check(kernels, {"a": 1.0}, 999)
    assert overdue is not None
    assert 0 < overdue < 1


@pytest.mark.parametrize(
    ("limits", "period"),
    [({}, 60), ({"a": 0.0}, 60), ({"a": 4.0}, 1), ({"a": 0.01}, 0.1), ({"a": 9999.0}, 60)],
)
def test_how_often_to_look_again(limits: dict[str, float], period: float) -> None:
    assert decisions.idle_period(limits) == period


# -- what families are told -----------------------------------------------------------------


def test_a_kernel_goes_on_counting_where_a_lost_one_ended_and_says_so() -> None:
    frame = {"name": "k", "settings": {"runtime_dir": "/theirs", "spares": 2}, "profile": None}
    known = {"now": 5.0, "runtime_dir": "/ours", "mortal": False}
    first = decisions.become_order(frame, None, **known)
    assert (first["op"], first["name"], first["created_at"]) == ("become", "k", 5.0)
    assert (first["epoch"], first["lost"], first["walls"]) == (1, None, None)
    assert first["settings"] == {"runtime_dir": "/ours", "spares": 2}
    again = decisions.become_order(frame, Grave(ONE, "k", "idle", 4, ended_at=0.0), **known)
    assert again["epoch"] == 4
    assert again["lost"].endswith(": idle")
    assert frame["settings"] == {"runtime_dir": "/theirs", "spares": 2}


@pytest.mark.parametrize(("files", "workspace"), [("copy", "/files"), ("share", None)])
def test_a_branch_is_told_only_what_is_for_it(files: str, workspace: str | None) -> None:
    frame = {"settings": {}, "files": files, "reseed": True, "secrets": {"a": "b"}, "kernel": ONE}
    order = decisions.branch_order(
        frame,
        entry(ONE, "source"),
        grave=None,
        name="b",
        kernel_id=TWO,
        address="/a",
        workspace="/files",
        runtime_dir="/ours",
    )
    assert (order["source"], order["kernel_id"], order["name"]) == (ONE, TWO, "b")
    assert (order["workspace"], order["reseed"], order["template"]) == (workspace, True, None)
    assert (order["epoch"], order["lost"]) == (1, None)
    assert "secrets" not in order


def test_walls_are_compared_by_what_they_do_not_by_their_name() -> None:
    walls = {"name": "mine", "network": "off"}
    record = {"walls": decisions.digest(walls)}
    assert decisions.has_walls(record, {**walls, "name": "yours"})
    assert not decisions.has_walls(record, {**walls, "network": "on"})
    assert not decisions.has_walls({}, walls)


# -- words ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "words"),
    [(None, "ended or were killed"), (9, "SIGKILL"), (11, "SIGSEGV"), (70 << 8, "exit code 70"),
     (0, "exit code 0"), (60, "signal 60")],
)  # fmt: skip
def test_why_a_family_ended(status: int | None, words: str) -> None:
    assert words in decisions.warden_cause(status)


def test_what_is_not_found_is_answered_with_what_is_there() -> None:
    words = decisions.not_found_words("demo", ["b", "a"])
    assert words == (
        "no kernel named 'demo'; kernels here: 'a', 'b'. Create it with get_or_create('demo')."
    )
    assert "there are no kernels here" in decisions.not_found_words("demo", [])
    many = decisions.not_found_words("demo", [f"k{n:03}" for n in range(500)])
    assert "and 480 more" in many
    assert len(many) < 500


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [("agnet", "agent"), ("Agent", "agent"), ("agent1", "agent"), ("data-prp", "Data-Prep")],
)
def test_a_near_miss_of_a_name_is_answered_with_that_name(wanted: str, meant: str) -> None:
    words = decisions.not_found_words(wanted, ["agent", "Data-Prep", "x"])
    assert words == (
        f"no kernel named {wanted!r}; did you mean {meant!r}? Kernels here: 'Data-Prep', 'agent', "
        f"'x'. Create it with get_or_create({wanted!r})."
    )


@pytest.mark.parametrize("wanted", ["other", "", "y", ONE, "agent" * 100_000, "\ud800"])
def test_what_is_near_no_name_is_not_guessed_at(wanted: str) -> None:
    assert "did you mean" not in decisions.not_found_words(wanted, ["agent", "x"])


# -- which root -----------------------------------------------------------------------------


def test_ordinary_variables_share_a_root() -> None:
    assert key_for(request({"A": "1"})) == key_for(request({"B": "2", "PATH": "/x"}))


@pytest.mark.parametrize("name", ["PYTHONHASHSEED", "PYTHONPATH", "LD_PRELOAD", "MALLOC_ARENA_MAX",
                                  "LD_LIBRARY_PATH", "GLIBC_TUNABLES"])  # fmt: skip
def test_variables_that_matter_at_process_start_have_a_root_of_their_own(name: str) -> None:
    plain, changed = key_for(request({})), key_for(request({name: "1"}))
    assert plain != changed
    (note,) = decisions.fresh_start_notes(changed, [plain, changed])
    assert name in note
    assert decisions.fresh_start_notes(plain, [plain, changed]) == []


def test_thread_pools_matter_once_a_library_may_have_read_them() -> None:
    assert key_for(request({"OMP_NUM_THREADS": "1"})) == key_for(request({}))
    assert key_for(request({"OMP_NUM_THREADS": "1"}, ("numpy",))) != key_for(
        request({}, ("numpy",))
    )


def test_preloaded_modules_have_a_root_of_their_own() -> None:
    assert key_for(request({}, ("json",))) != key_for(request({}))


def test_a_change_of_packages_changes_the_fingerprint(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    (tmp_path / "src" / "kernelbox").mkdir(parents=True)
    key = RootKey(str(tmp_path / "bin" / "python"), str(tmp_path / "src"), (), ())
    folders = package_folders(key)
    before = fingerprint(folders)
    assert fingerprint(folders) == before
    (site / "new_package").mkdir()
    os.utime(site, (1, 1))
    assert fingerprint(folders) != before


# -- the registry ---------------------------------------------------------------------------


def test_the_registry_is_what_it_was_when_it_is_read_again(tmp_path: Path) -> None:
    path = str(tmp_path / "registry.json")
    registry = Registry(path)
    registry.add(entry(ONE, "a"))
    registry.add(entry(TWO, "b"))
    registry.bury(TWO, cause="idle", epoch=4)
    registry.save()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    again = load(path)
    assert again.kernels == registry.kernels
    assert again.graves == registry.graves
    assert (again.problem, again.dirty) == (None, False)
    assert os.listdir(tmp_path) == ["registry.json"]


def test_kernels_are_found_by_id_and_by_name_and_graves_too(tmp_path: Path) -> None:
    registry = Registry("")
    registry.add(entry(ONE, "a"))
    assert registry.find(ONE) is registry.find("a") is registry.kernels[ONE]
    assert registry.find("b") is None
    registry.bury(ONE, cause="first")
    registry.add(entry(TWO, "a"))
    registry.bury(TWO, cause="second")
    latest = registry.grave("a")
    assert latest is not None
    assert (latest.cause, latest.epoch) == ("second", 2)
    of_the_first = registry.grave(ONE)
    assert of_the_first is not None
    assert of_the_first.cause == "first"
    registry.forget_graves("a")
    assert registry.grave("a") is registry.grave(ONE) is None


def test_a_name_never_hides_the_kernel_with_that_id(tmp_path: Path) -> None:
    registry = Registry("")
    registry.add(entry(ONE, "a"))
    registry.add(entry(TWO, ONE))
    found = registry.find(ONE)
    assert found is not None
    assert found["name"] == "a"


def test_graves_do_not_pile_up_for_ever() -> None:
    registry = Registry("")
    for number in range(700):
        registry.add(entry(str(number), str(number)))
        registry.bury(str(number), cause="x")
    assert len(registry.graves) == 500
    assert registry.grave("0") is None
    assert registry.grave("699") is not None


@pytest.mark.parametrize("content", ["{", "[]", '{"kernels": 7}', "", "\0\0", '{"kernels": [1]}',
                                     '{"kernels": [{}]}', '{"kernels": [], "graves": [{"x": 1}]}',
                                     "\udcff"], ids=range(9))  # fmt: skip
def test_an_unreadable_registry_is_set_aside_never_deleted(tmp_path: Path, content: str) -> None:
    path = tmp_path / "registry.json"
    raw = content.encode("utf-8", "surrogateescape")
    path.write_bytes(raw)
    registry = load(str(path))
    assert registry.kernels == {}
    assert registry.set_aside is not None
    assert "was set aside" in registry.set_aside
    (aside,) = tmp_path.glob("registry.json.corrupt-*")
    assert aside.read_bytes() == raw
    registry.save()
    assert json.loads(path.read_text())["kernels"] == []


def test_no_registry_yet_is_an_empty_one(tmp_path: Path) -> None:
    registry = load(str(tmp_path / "registry.json"))
    assert (registry.kernels, registry.problem) == ({}, None)


def test_a_registry_that_cannot_be_written_is_a_problem_and_not_a_crash(tmp_path: Path) -> None:
    registry = Registry(str(tmp_path / "gone" / "registry.json"))
    registry.add(entry(ONE, "a"))
    registry.save()
    assert registry.problem is not None
    assert "cannot be written" in registry.problem
    (tmp_path / "gone").mkdir()
    registry.save()
    assert registry.problem is None
    assert load(registry.path).kernels == registry.kernels
