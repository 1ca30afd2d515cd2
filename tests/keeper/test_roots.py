"""Roots: one per kind of kernel, re-rooted when packages change, warm with what is preloaded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from kernelbox import Box, Settings, StartupFailed

Waiting = Callable[..., None]
Find = Callable[[Box], list[psutil.Process]]


def test_kernels_share_a_root(box: Box, roots: Find) -> None:
    for name in ("a", "b", "c"):
        assert box.get_or_create(name, environ={**os.environ, "ANY": name}).notes == []
    assert len(roots(box)) == 1


def test_variables_for_the_start_of_a_process_take_effect_and_are_noted(
    box: Box, roots: Find
) -> None:
    usual = box.get_or_create("usual")
    assert usual.notes == []
    environ = {**os.environ, "PYTHONHASHSEED": "123", "PYTHONOPTIMIZE": "1"}
    special = box.get_or_create("special", environ=environ)
    assert len(roots(box)) == 2
    (note,) = special.notes
    assert "PYTHONHASHSEED" in note
    assert "PYTHONOPTIMIZE" in note
    expected = subprocess.run(
        [sys.executable, "-c", "print(hash('kernelbox'), __debug__)"],
        env=environ, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert box.execute(special, "print(hash('kernelbox'), __debug__)").output == expected
    assert box.execute(usual, "__debug__").return_value == "True"
    assert box.execute(special, "import os; os.environ['PYTHONHASHSEED']").return_value == "'123'"
    assert box.get_or_create("another", environ=environ).notes == special.notes
    assert len(roots(box)) == 2


def test_pythonpath_of_the_caller_is_the_kernels(box: Box, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "module_of_the_caller.py").write_text("answer = 42")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "lib")}
    record = box.get_or_create("k", environ=environ)
    result = box.execute(record, "import module_of_the_caller; module_of_the_caller.answer")
    assert result.return_value == "42"
    result = box.execute(record, "import os; print(os.environ['PYTHONPATH'])")
    assert result.output == f"{tmp_path}/lib\n"


def test_preloaded_modules_are_there_at_once_and_not_in_the_namespace(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELBOX_PRELOAD", "wave, no_such_module_xyz")
    with Box() as box:
        record = box.get_or_create("k")
        assert box.execute(record, "import sys; 'wave' in sys.modules").return_value == "True"
        assert not box.execute(record, "wave").ok
        (note,) = record.notes
        assert "no_such_module_xyz" in note
        assert "KERNELBOX_PRELOAD" in note
        plain = Box(Settings.from_wire({**box.settings.to_wire(), "preload": ()}))
        with plain:
            other = plain.get_or_create("plain")
            code = "import sys; 'wave' in sys.modules"
            assert plain.execute(other, code).return_value == "False"
        box.wipe()


def test_packages_that_change_under_a_root_give_a_new_one(
    box: Box, roots: Find, tmp_path: Path, waiting: Waiting
) -> None:
    """In an environment of its own, which may be changed."""
    venv = tmp_path / "venv"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", str(venv)],
        check=True,
    )
    (site,) = venv.glob("lib/python3*/site-packages")
    for number, folder in enumerate(path for path in sys.path if path.endswith("-packages")):
        (site / f"outer{number}.pth").write_text(folder)
    package = Path(__file__).parents[2] / "src"
    (site / "kernelbox-source.pth").write_text(str(package))
    python = str(venv / "bin" / "python")
    create = "import kernelbox, sys; kernelbox.get_or_create(sys.argv[1])"
    subprocess.run([python, "-c", create, "before"], check=True, timeout=60)
    box.execute("before", "x = 'kept'")
    (old,) = roots(box)
    (site / "fresh_package.py").write_text("version = 2")
    waiting(
        lambda: (
            subprocess.run([python, "-c", create, "after"], check=True, timeout=60)
            and box.destroy("after")
            and old not in roots(box)
        ),
        what="a new root",
    )
    subprocess.run([python, "-c", create, "after"], check=True, timeout=60)
    result = box.execute("after", "import fresh_package; fresh_package.version")
    assert result.return_value == "2"
    result = box.execute("before", "x")
    assert (result.return_value, result.state) == ("'kept'", "kept")


def test_a_python_that_cannot_be_a_root_is_reported_with_its_words(
    environment: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho this python is broken >&2\nexit 3\n")
    broken.chmod(0o755)
    with Box() as box:
        box.list_kernels()  # the keeper itself is started by a Python that works
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(broken))
            with pytest.raises(StartupFailed) as caught:
                box.get_or_create("k")
            assert "this python is broken" in str(caught.value)
            assert str(broken) in str(caught.value)
            patch.setattr(sys, "executable", str(tmp_path / "nowhere"))
            with pytest.raises(StartupFailed) as caught:
                box.get_or_create("k")
            assert "nowhere" in str(caught.value)
        assert box.list_kernels() == []


def test_the_environment_of_whoever_started_the_keeper_reaches_nobody_else(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_STARTER", "s3cret")
    box.get_or_create("starter")
    monkeypatch.delenv("SECRET_OF_THE_STARTER")
    record = box.get_or_create("other")
    result = box.execute(record, "import os; 'SECRET_OF_THE_STARTER' in os.environ")
    assert result.return_value == "False"
    result = box.execute(record, "echo [$SECRET_OF_THE_STARTER]", language="bash")
    assert result.output == "[]\n"
    code = "print(open(f'/proc/{os.getppid()}/environ').read())"
    assert "s3cret" not in box.execute(record, code).output


def test_a_root_that_never_comes_up_is_given_up_and_does_not_stay(
    environment: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "hangs_when_imported.py").write_text("import time; time.sleep(300)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("KERNELBOX_PRELOAD", "hangs_when_imported")
    monkeypatch.setenv("KERNELBOX_START_TIMEOUT", "1")
    with Box() as box, pytest.raises(StartupFailed, match="did not come up within 1 s"):
        box.get_or_create("k")
    # The fixture proves that the root is gone, too.


@pytest.mark.slow
def test_a_root_that_is_stuck_is_ended_and_the_next_kernel_gets_another(
    environment: Path, monkeypatch: pytest.MonkeyPatch, roots: Find, waiting: Waiting
) -> None:
    monkeypatch.setenv("KERNELBOX_START_TIMEOUT", "3")
    with Box() as box:
        first = box.get_or_create("first")
        box.execute(first, "x = 1")
        (root,) = roots(box)
        root.suspend()
        # Who is in a hurry does not end it for all others.
        with pytest.raises(StartupFailed, match="still warming up"):
            box.get_or_create("a")
        words: list[str] = []

        def replaced() -> bool:
            try:
                return bool(box.execute(box.get_or_create("b"), "1 + 1").ok)
            except StartupFailed as error:
                words.append(str(error))
                return False

        waiting(replaced, what="another root", seconds=60)
        assert any("was ended" in text for text in words)
        waiting(lambda: not root.is_running(), what="the stuck root to end")
        assert box.execute(first, "x").return_value == "1"
