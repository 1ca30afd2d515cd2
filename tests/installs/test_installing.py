"""Packages for kernels, from every door: real uv, real kernels, an index in a folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest
from processes import wait_until
from wheels import Shop, other_python

from kernelbox import (
    AsyncBox,
    BadInput,
    Box,
    BoxError,
    ExecutionResult,
    InstallFailed,
    KernelRecord,
    Settings,
    Unsupported,
)

Run = Callable[..., ExecutionResult]


def but(settings: Settings, **changes: object) -> Settings:
    return Settings.from_wire({**settings.to_wire(), **changes})


def names(report: object) -> list[str]:
    return [str(each) for each in report.installed]  # type: ignore[attr-defined]


def test_a_package_can_be_imported_at_once(shared_box: Box, either: KernelRecord, ran: Run) -> None:
    ran(either, "x = 5")
    report = shared_box.install(either, "kbx-plain==1.*")
    assert names(report) == ["kbx-plain 1.0"]
    assert report.requested == ["kbx-plain==1.*"]
    assert "installed kbx-plain 1.0" in str(report)
    assert ran(either, "import kbx_plain; kbx_plain.version, x").return_value == "('1.0', 5)"


def test_what_a_package_needs_comes_along(shared_box: Box, either: KernelRecord, ran: Run) -> None:
    assert names(shared_box.install(either, "kbx-needs")) == ["kbx-needs 1.0", "kbx-plain 2.0"]
    assert ran(either, "import kbx_needs, kbx_plain; kbx_plain.version").return_value == "'2.0'"


def test_programs_and_bash_have_it_too(shared_box: Box, either: KernelRecord, ran: Run) -> None:
    ran(either, "export A=1", language="bash")  # a shell that was there before
    shared_box.install(either, "kbx-plain")
    code = f"{sys.executable} -c 'import kbx_plain; print(kbx_plain.version)'"
    assert ran(either, f"!{code}").output == "2.0\n"
    assert ran(either, f"echo $A; {code}", language="bash").output == "1\n2.0\n"


def test_a_program_of_a_package_is_on_the_path(
    shared_box: Box, either: KernelRecord, ran: Run, shop: Shop
) -> None:
    shop.offer(
        "kbx-tool",
        files={
            "kbx_tool.py": "def main(): print('tool')\n",
            "kbx_tool-1.0.dist-info/entry_points.txt": "[console_scripts]\nkbx-tool=kbx_tool:main\n",
        },
    )
    shared_box.install(either, "kbx-tool")
    assert ran(either, "!kbx-tool").output == "tool\n"


@pytest.mark.parametrize(
    "line", ["%pip install kbx-needs", "!pip install kbx-needs", "%uv pip install kbx-needs"]
)
def test_a_cell_asks_for_itself(shared_box: Box, either: KernelRecord, ran: Run, line: str) -> None:
    result = ran(either, f"{line}\nimport kbx_needs\nkbx_needs.version")
    assert result.return_value == "'1.0'"
    assert "installed kbx-needs 1.0, kbx-plain 2.0" in result.output
    assert ran(either, "import kbx_plain; kbx_plain.version").return_value == "'2.0'"


@pytest.mark.parametrize(
    "line", ["said = !pip install kbx-plain", "said = %sx pip install kbx-plain"]
)
def test_a_cell_that_reads_what_pip_says(either: KernelRecord, ran: Run, line: str) -> None:
    result = ran(either, f"{line}\nimport kbx_plain\nprint(*said)")
    assert "installed kbx-plain 2.0" in result.output
    assert ran(either, "a = 'kbx'\nsaid = !pip install {a}-nope\nprint(*said)").output.startswith(
        "pip install: the index has no package 'kbx-nope'"
    )


def test_a_quiet_install_says_nothing(either: KernelRecord, ran: Run) -> None:
    result = ran(either, "!pip install -q kbx-plain 2>&1 | tail -1\nimport kbx_plain")
    assert result.output == ""


def test_a_cell_that_fails_to_install_says_why_in_a_line(
    shared_box: Box, either: KernelRecord
) -> None:
    result = shared_box.execute(either, "x = 1\n%pip install kbx-nope\nx = 2", timeout=30)
    assert not result.ok
    assert result.error is not None
    assert result.error.ename == "InstallFailed"
    assert "no package 'kbx-nope'" in result.error.evalue
    assert len(result.error.traceback) == 1
    result = shared_box.execute(either, "!pip install kbx-nope\n(x, _exit_code)", timeout=30)
    assert result.ok
    assert result.return_value == "(1, 1)"
    assert "no package 'kbx-nope'" in result.stderr


def test_other_words_of_pip_are_pips(either: KernelRecord, ran: Run) -> None:
    assert ran(either, "%pip --version").output.startswith("pip ")


def test_it_outlives_a_restart(shared_box: Box, either: KernelRecord, ran: Run) -> None:
    shared_box.install(either, "kbx-plain==1.0")
    shared_box.restart(either)
    assert ran(either, "import kbx_plain; kbx_plain.version").return_value == "'1.0'"
    shared_box.execute(either, "import os; os._exit(3)")
    assert ran(either, "import kbx_plain; kbx_plain.version").return_value == "'1.0'"


def test_it_outlives_a_rewind_to_before_it(shared_box: Box, either: KernelRecord, ran: Run) -> None:
    ran(either, "x = 1")
    before = shared_box.checkpoint(either)
    shared_box.install(either, "kbx-plain==1.0")
    ran(either, "import kbx_plain")
    shared_box.rewind(either, before)
    assert ran(either, "import kbx_plain; kbx_plain.version, x").return_value == "('1.0', 1)"


def test_it_outlives_an_atomic_cell_that_fails(
    shared_box: Box, either: KernelRecord, ran: Run
) -> None:
    result = shared_box.execute(either, "%pip install kbx-plain\n1/0", atomic=True, timeout=30)
    assert result.state == "rewound"
    assert ran(either, "import kbx_plain; kbx_plain.version").return_value == "'2.0'"


def test_a_branch_has_it_and_goes_its_own_way(
    shared_box: Box, either: KernelRecord, ran: Run
) -> None:
    shared_box.install(either, "kbx-plain==1.0")
    child = shared_box.branch(either, f"{either.name[:80]}-child")
    assert ran(child, "import kbx_plain; kbx_plain.version").return_value == "'1.0'"
    shared_box.install(child, "kbx-needs")
    ran(child, "import kbx_needs")
    assert not shared_box.execute(either, "import kbx_needs").ok
    copy = shared_box.branch(child, f"{either.name[:80]}-copy", method="copy")
    ran(copy, "import kbx_needs")
    shared_box.destroy(either)
    assert ran(child, "import kbx_needs; kbx_needs.version").return_value == "'1.0'"
    shared_box.destroy(child)
    shared_box.destroy(copy)


def test_a_busy_kernel_has_it_in_its_next_cell(
    shared_box: Box, either: KernelRecord, ran: Run
) -> None:
    running = threading.Thread(target=ran, args=[either, "import time; time.sleep(2); x = 1"])
    running.start()
    wait_until(lambda: shared_box.status(either)["running"], what="the cell to run")
    shared_box.install(either, "kbx-plain==1.0")
    assert ran(either, "import kbx_plain; kbx_plain.version, x").return_value == "('1.0', 1)"
    running.join(30)


def test_members_of_a_family_install_at_the_same_time(
    shared_box: Box, either: KernelRecord, ran: Run
) -> None:
    names = [f"{either.name[:80]}-{n}" for n in range(3)]
    children = shared_box.branch(either, names=names)
    cells = dict.fromkeys(children, "%pip install -q kbx-needs\nimport kbx_needs")
    assert all(result.ok for result in shared_box.execute_many(cells, timeout=60).values())
    for child in children:
        shared_box.destroy(child)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


def test_an_old_answer_is_better_than_none(settings: Settings, shop: Shop, tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(shop.folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/simple"
    own = but(settings, install_cache=str(tmp_path / "cache"), install_indexes=[address])
    with Box(own) as box:
        first, second = box.get_or_create("of-yesterday"), box.get_or_create("of-today")
        box.install(first, "kbx-plain")
        server.shutdown()
        server.server_close()
        shutil.rmtree(tmp_path / "cache" / "uv")  # it remembers pages, for some minutes
        for path in (tmp_path / "cache" / "answers").iterdir():
            values = json.loads(path.read_text())
            path.write_text(json.dumps({**values, "time": time.time() - 3 * 86400}))
        report = box.install(second, "kbx-plain")
        assert any("3.0 days ago" in note for note in report.notes), report
        assert report.cached
        with pytest.raises(InstallFailed, match="cannot be reached") as caught:
            box.install(second, "kbx-other")
        assert caught.value.details["reason"] == "unreachable"
        box.destroy(first)
        box.destroy(second)


def test_a_copy_of_a_template_has_it(shared_box: Box, kernel: KernelRecord, ran: Run) -> None:
    shared_box.install(kernel, "kbx-plain==1.0")
    try:
        copy = shared_box.get_or_create("copy-of-a-template", template=kernel)
    except BoxError as error:
        pytest.skip(f"there are no templates here: {error}")
    assert ran(copy, "import kbx_plain; kbx_plain.version").return_value == "'1.0'"
    shared_box.install(copy, "kbx-needs")
    ran(copy, "import kbx_needs")
    shared_box.restart(copy)
    ran(copy, "import kbx_needs")
    shared_box.destroy(copy)


def test_later_installs_fit_the_earlier_ones(
    shared_box: Box, either: KernelRecord, ran: Run
) -> None:
    shared_box.install(either, "kbx-plain==2.0")
    with pytest.raises(InstallFailed, match=r"do not go together.*kbx-old.*before.*kbx-plain==2.0"):
        shared_box.install(either, "kbx-old")
    # What was asked for by name is replaced when it is asked for again.
    report = shared_box.install(either, "kbx-old", "kbx-plain")
    assert names(report) == ["kbx-old 1.0", "kbx-plain 1.0"]
    shared_box.restart(either)
    assert ran(either, "import kbx_plain; kbx_plain.version").return_value == "'1.0'"


def test_what_the_environment_has_is_left_as_it_is(
    shared_box: Box, kernel: KernelRecord, ran: Run
) -> None:
    version = ran(kernel, "import psutil; psutil.__version__").return_value
    report = shared_box.install(kernel, "psutil", "kernelbox", "ipython")
    assert report.installed == []
    assert any("psutil" in note and "there already" in note for note in report.notes)
    assert ran(kernel, "psutil.__version__").return_value == version


def test_what_the_environment_has_can_be_had_back(
    shared_box: Box, either: KernelRecord, ran: Run, shop: Shop
) -> None:
    from importlib.metadata import version

    shop.offer("pluggy", "0.1")
    shop.offer("pluggy", version("pluggy"), files={})
    assert names(shared_box.install(either, "pluggy==0.1")) == ["pluggy 0.1"]
    assert ran(either, "import pluggy; pluggy.version").return_value == "'0.1'"
    assert names(shared_box.install(either, "pluggy>=1")) == []
    shared_box.restart(either)
    assert ran(either, "import pluggy; pluggy.__version__").return_value == repr(version("pluggy"))


def test_a_path_that_a_cell_has_broken_ends_nothing(
    shared_box: Box, either: KernelRecord, ran: Run
) -> None:
    ran(either, "import pathlib, sys; sys.path.insert(0, pathlib.Path('/x')); sys.path.append(5)")
    shared_box.install(either, "kbx-plain")
    assert ran(either, "import kbx_plain\nkbx_plain.version").ok
    ran(either, "sys.path = ()")
    shared_box.install(either, "kbx-needs")
    assert ran(either, "1 + 1").return_value == "2"


def test_no_environment_on_disk_changes(shared_box: Box, kernel: KernelRecord, ran: Run) -> None:
    shared_box.install(kernel, "kbx-plain")
    path = ran(kernel, "import kbx_plain; print(kbx_plain.__file__)").output
    assert str(shared_box.settings.install_cache) in path
    assert subprocess.run(
        [sys.executable, "-c", "import kbx_plain"], capture_output=True
    ).returncode


def test_it_goes_with_the_family(shared_box: Box, either: KernelRecord, ran: Run) -> None:
    shared_box.install(either, "kbx-plain")
    families = Path(shared_box.settings.install_cache) / "families"
    assert (families / either.kernel_id / "1" / "kbx_plain").is_dir()
    shared_box.destroy(either)
    assert not (families / either.kernel_id).exists()


def test_a_second_kernel_has_it_from_the_cache(
    settings: Settings, shop: Shop, tmp_path: Path
) -> None:
    shop.offer("kbx-gone", "1.0", requires=["kbx-plain"])
    with Box(settings) as box:
        first = box.get_or_create("first-to-have-it")
        assert not box.install(first, "kbx-gone").cached
        hidden = shop.folder.rename(tmp_path / "hidden")
        try:
            second = box.get_or_create("second-to-have-it", profile="restrictive")
            report = box.install(second, "kbx-gone")
            assert report.cached
            assert names(report) == ["kbx-gone 1.0", "kbx-plain 2.0"]
            assert box.execute(second, "import kbx_gone; kbx_gone.version").return_value == "'1.0'"
            with pytest.raises(InstallFailed) as caught:
                box.install(second, "kbx-old")  # was not there before
            assert caught.value.details["reason"] in ("unreachable", "not_found", "failed")
        finally:
            hidden.rename(shop.folder)
        box.destroy(first)
        box.destroy(second)


def test_a_layer_that_somebody_wrote_to_is_made_anew(settings: Settings, shop: Shop) -> None:
    shop.offer("kbx-spoilt", "1.0")
    with Box(settings) as box:
        first, second = box.get_or_create("spoils"), box.get_or_create("is-spared")
        box.install(first, "kbx-spoilt")
        code = (
            "import kbx_spoilt, os\n"
            "os.chmod(kbx_spoilt.__file__, 0o644)\n"
            "open(kbx_spoilt.__file__, 'w').write('version = \"evil\"')"
        )
        assert box.execute(first, code).ok
        assert not box.install(second, "kbx-spoilt").cached
        assert box.execute(second, "import kbx_spoilt; kbx_spoilt.version").return_value == "'1.0'"
        box.destroy(first)
        box.destroy(second)


def test_two_at_once_install_once(settings: Settings, shop: Shop) -> None:
    shop.offer("kbx-crowd", "1.0")
    with Box(settings) as box:
        kernels = [box.get_or_create(f"crowd-{n}") for n in range(4)]
        reports: list[object] = []

        def install(kernel: KernelRecord) -> None:
            reports.append(box.install(kernel, "kbx-crowd"))

        threads = [threading.Thread(target=install, args=[kernel]) for kernel in kernels]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(report.cached for report in reports) == [False, True, True, True]  # type: ignore[attr-defined]
        for kernel in kernels:
            assert box.execute(kernel, "import kbx_crowd").ok
            box.destroy(kernel)


# -- what cannot be had -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "reason", "words"),
    [
        (["kbx-nope"], "not_found", "spelled"),
        (["kbx-plain==9"], "no_version", "kbx-plain==9"),
        (["kbx-source"], "no_wheel", "KERNELBOX_INSTALL_SOURCE"),
        (["kbx-other"], "no_wheel", "no wheel for Python"),
        (["kbx-old", "kbx-plain==2.0"], "conflict", "go together"),
        (["ipython==7.0"], "blocked", "runs on"),
    ],
)
def test_a_failure_says_why_in_a_line(
    shared_box: Box, kernel: KernelRecord, shop: Shop, wanted: list[str], reason: str, words: str
) -> None:
    shop.offer_source("kbx-source")
    shop.offer("kbx-other", tag=other_python())
    with pytest.raises(InstallFailed, match=words) as caught:
        shared_box.install(kernel, *wanted)
    assert caught.value.details["reason"] == reason
    assert "\n" not in caught.value.message
    assert not (shop.folder / "BUILT").exists()
    assert shared_box.execute(kernel, "1+1").ok


@pytest.mark.parametrize(
    "wanted",
    ["-r x", "./x.whl", "kbx-plain\n-e .", "x @ file:///etc/passwd"],
    ids=["option", "path", "lines", "address"],
)
def test_what_is_no_requirement_is_bad_input(
    shared_box: Box, kernel: KernelRecord, wanted: str
) -> None:
    with pytest.raises(BadInput):
        shared_box.install(kernel, wanted)
    with pytest.raises(BadInput):
        shared_box.install(kernel)


def test_the_policy_of_the_caller_counts(settings: Settings) -> None:
    strict = but(settings, install_allow=["kbx-n*"], install_block=["KBX_plain"])
    with Box(strict) as box:
        kernel = box.get_or_create("strict")
        with pytest.raises(InstallFailed, match="not allowed"):
            box.install(kernel, "kbx-old")
        with pytest.raises(InstallFailed, match=r"kbx-plain is blocked.*depends on it"):
            box.install(kernel, "kbx-needs")
        result = box.execute(kernel, "%pip install kbx-needs", timeout=30)
        assert result.error is not None
        assert "kbx-plain is blocked" in result.error.evalue
        box.destroy(kernel)


def test_installing_can_be_left_to_callers_or_switched_off(settings: Settings) -> None:
    with Box(but(settings, install="callers")) as box:
        kernel = box.get_or_create("callers-only", profile="restrictive")
        result = box.execute(kernel, "%pip install kbx-plain", timeout=30)
        assert result.error is not None
        assert "KERNELBOX_INSTALL=callers" in result.error.evalue
        assert names(box.install(kernel, "kbx-plain")) == ["kbx-plain 2.0"]
        box.destroy(kernel)
    with Box(but(settings, install="off")) as box:
        kernel = box.get_or_create("nobody", profile="restrictive")
        with pytest.raises(InstallFailed, match="KERNELBOX_INSTALL=off"):
            box.install(kernel, "kbx-plain")
        assert box.execute(kernel, "import os; os.path.exists('/packages')").return_value == "False"
        box.destroy(kernel)


def test_a_full_disk_is_said_to_be_one(settings: Settings, shop: Shop, tmp_path: Path) -> None:
    shop.offer("kbx-large", files={"kbx_large.py": f"x = {'a' * 3_000_000!r}"})
    tiny = tmp_path / "tiny"
    tiny.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tiny], check=False
    ).returncode:
        pytest.skip("no small file system can be mounted here: it takes root")
    try:
        with Box(but(settings, install_cache=str(tiny / "cache"))) as box:
            kernel = box.get_or_create("no-room")
            with pytest.raises(InstallFailed, match="disk") as caught:
                box.install(kernel, "kbx-large")
            assert caught.value.details["reason"] == "disk_full"
            assert list((tiny / "cache" / "drafts").iterdir()) == []
            assert box.execute(kernel, "1+1").ok
            box.destroy(kernel)
    finally:
        subprocess.run(["umount", tiny], check=True)


def test_more_than_a_kernel_may_have_is_refused(settings: Settings, shop: Shop) -> None:
    shop.offer("kbx-two-mb", files={f"kbx_two/{n}.py": "#" * 500_000 for n in range(4)})
    with Box(but(settings, install_size=1 << 20)) as box:
        kernel = box.get_or_create("small-appetite")
        with pytest.raises(InstallFailed) as caught:
            box.install(kernel, "kbx-two-mb")
        assert caught.value.details["reason"] == "too_large"
        box.destroy(kernel)


def test_a_cache_that_is_too_large_loses_its_oldest(settings: Settings, tmp_path: Path) -> None:
    small = but(settings, install_cache=str(tmp_path / "cache"), install_cache_size=0)
    with Box(small) as box:
        kernel = box.get_or_create("tidy")
        box.install(kernel, "kbx-plain==1.0")
        box.install(kernel, "kbx-plain==2.0")
        assert len(list((tmp_path / "cache" / "layers").iterdir())) == 1
        assert box.execute(kernel, "import kbx_plain; kbx_plain.version").return_value == "'2.0'"
        box.destroy(kernel)


def test_a_folder_that_others_can_write_to_is_refused(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with Box(but(settings, install_cache=str(tmp_path / "cache"))) as box:
        kernel = box.get_or_create("careless")
        with pytest.raises(InstallFailed, match="others can write"):
            box.install(kernel, "kbx-plain")
        box.destroy(kernel)


def test_without_uv_it_is_said_what_to_install() -> None:
    code = "import sys; sys.modules['uv'] = None\nfrom kernelbox.installs import uv\nuv.find('/nowhere')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install uv packaging" in ended.stderr


# -- bad luck -----------------------------------------------------------------------------------


@pytest.fixture
def slow_index() -> Iterator[str]:
    """An index that takes a request and never answers."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/simple"


def test_a_cell_that_is_interrupted_ends_its_install(settings: Settings, slow_index: str) -> None:
    with Box(but(settings, install_indexes=[slow_index])) as box:
        kernel = box.get_or_create("impatient")
        result = box.execute(kernel, "x = 1\n%pip install kbx-plain", timeout=1)
        assert result.status == "timeout"
        assert result.state == "kept"
        wait_until(lambda: not _below(box, kernel), what="the installer to end")
        assert box.execute(kernel, "x").return_value == "1"
        box.destroy(kernel)


def test_an_install_that_takes_too_long_is_ended(settings: Settings, slow_index: str) -> None:
    with Box(but(settings, install_indexes=[slow_index], install_timeout=1.0)) as box:
        kernel = box.get_or_create("too-long")
        with pytest.raises(InstallFailed, match="KERNELBOX_INSTALL_TIMEOUT"):
            box.install(kernel, "kbx-plain")
        box.destroy(kernel)


def test_a_kernel_that_is_destroyed_takes_its_install_along(
    settings: Settings, slow_index: str
) -> None:
    with Box(but(settings, install_indexes=[slow_index])) as box:
        kernel = box.get_or_create("short-lived")
        errors: list[BaseException] = []

        def install() -> None:
            try:
                box.install(kernel, "kbx-plain")
            except BaseException as error:  # noqa: BLE001
                errors.append(error)

        thread = threading.Thread(target=install)
        thread.start()
        wait_until(lambda: _below(box, kernel), what="the installer to start")
        pids = [process.pid for process in _below(box, kernel)]
        started = time.monotonic()
        box.destroy(kernel)
        thread.join(30)
        assert errors
        assert time.monotonic() - started < 30
        wait_until(lambda: not any(map(psutil.pid_exists, pids)), what="the installer to end")


def test_an_installer_that_is_killed_is_an_error_and_the_next_one_works(
    settings: Settings, slow_index: str
) -> None:
    with Box(but(settings, install_indexes=[slow_index])) as box:
        kernel = box.get_or_create("unlucky")
        errors: list[BaseException] = []

        def install() -> None:
            try:
                box.install(kernel, "kbx-plain")
            except BaseException as error:  # noqa: BLE001
                errors.append(error)

        thread = threading.Thread(target=install)
        thread.start()
        wait_until(lambda: _below(box, kernel), what="the installer to start")
        for process in _below(box, kernel):
            process.kill()
        thread.join(30)
        assert isinstance(errors[0], InstallFailed)
        with Box(settings) as good:
            assert names(good.install(kernel, "kbx-plain")) == ["kbx-plain 2.0"]
        box.destroy(kernel)


def _below(box: Box, kernel: KernelRecord) -> list[psutil.Process]:
    """The installers that this kernel's warden has started."""
    (warden,) = [p["pid"] for p in box.status(kernel)["processes"] if p["role"] == "warden"]
    found = []
    for child in psutil.Process(warden).children():
        try:
            if "kernelbox.installs" in child.cmdline():
                found.append(child)
        except psutil.Error:
            continue
    return found


@pytest.mark.foreign
def test_a_foreign_kernel_is_refused(settings: Settings) -> None:
    pytest.importorskip("ipykernel")
    with Box(but(settings, kernel_type="ipykernel")) as box:
        kernel = box.get_or_create("foreign")
        with pytest.raises(Unsupported, match="foreign"):
            box.install(kernel, "kbx-plain")
        box.destroy(kernel)


# -- other doors --------------------------------------------------------------------------------


async def _install(settings: Settings) -> str:
    async with AsyncBox(settings) as box:
        kernel = await box.get_or_create("awaited")
        report = await box.install(kernel, "kbx-plain")
        await box.destroy(kernel)
        return str(report)


def test_the_async_box_installs(settings: Settings) -> None:
    import asyncio

    assert "kbx-plain 2.0" in asyncio.run(_install(settings))


def test_the_command_line_installs(settings: Settings, tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "KERNELBOX_HOME": str(tmp_path / "home"),
        "KERNELBOX_INSTALL_CACHE": settings.install_cache,
        "KERNELBOX_INSTALL_INDEXES": settings.install_indexes[0],
        "KERNELBOX_KEEPER_LINGER": "0.1",
        "KERNELBOX_SPARES": "0",
    }

    def kernelbox(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kernelbox", *words]
        return subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60)

    assert kernelbox("create", "--name", "demo").returncode == 0
    done = kernelbox("install", "--name", "demo", "kbx-needs", "kbx-plain==1.0")
    assert done.returncode == 0, done.stderr
    assert [each["name"] for each in json.loads(done.stdout)["installed"]] == [
        "kbx-needs",
        "kbx-plain",
    ]
    result = kernelbox("exec", "--name", "demo", "import kbx_plain; kbx_plain.version")
    assert json.loads(result.stdout)["return_value"] == "'1.0'"
    failed = kernelbox("install", "--name", "demo", "kbx-nope")
    assert failed.returncode == 11
    assert json.loads(failed.stderr)["details"]["reason"] == "not_found"
    assert kernelbox("install", "--name", "demo").returncode == 2
    shown = json.loads(kernelbox("config").stdout)["settings"]["install_indexes"]
    assert settings.install_indexes[0] not in str(shown)  # it may have a password in it
    kernelbox("wipe")


def test_from_the_index_of_this_machine(settings: Settings) -> None:
    """Nothing is said about where from: what pip or uv is set up with decides."""
    with Box(but(settings, install_indexes=[])) as box:
        kernel = box.get_or_create("from-afar", profile="restrictive")
        try:
            report = box.install(kernel, "toolz")
        except InstallFailed as error:
            if error.details["reason"] != "unreachable":
                raise
            pytest.skip(f"no index can be reached from here: {error}")
        finally:
            result = box.execute(kernel, "import toolz; toolz.__name__")
            box.destroy(kernel)
        assert result.return_value == "'toolz'"
        assert report.installed
