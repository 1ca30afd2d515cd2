"""Whatever is passed in, the answer is a clear error at once or a clear result."""

from __future__ import annotations

from typing import Any

import pytest

from kernelbox import BadInput, Box, KernelNotFound, KernelRecord, Settings
from kernelbox.config import VARIABLES

BAD_NAMES = [
    "",
    "   ",
    ".",
    "..",
    "../x",
    "a/b",
    "/etc/passwd",
    "a\\b",
    "a\0b",
    "a\nb",
    "\x1b[31m",
    "\ud800",
    "x" * 500,
    None,
    7,
    b"bytes",
    ["list"],
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: repr(name)[:20])
def test_a_bad_name_is_refused_before_anything_starts(shared_box: Box, name: object) -> None:
    with pytest.raises(BadInput, match="name"):
        shared_box.get_or_create(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: repr(name)[:20])
def test_a_bad_name_of_a_branch_is_refused(shared_box: Box, name: object) -> None:
    with pytest.raises(BadInput, match="name"):
        shared_box.branch("anything", name)  # type: ignore[arg-type]


@pytest.mark.parametrize("wanted", ["nobody", "../x", "x" * 500, "a\0b", "\ud800", "*"])
def test_an_unknown_kernel_is_named_with_those_that_exist(
    shared_box: Box, kernel: KernelRecord, wanted: str
) -> None:
    calls = (
        lambda: shared_box.execute(wanted, "1"),
        lambda: list(shared_box.stream(wanted, "1")),
        lambda: shared_box.status(wanted),
        lambda: shared_box.interrupt(wanted),
        lambda: shared_box.restart(wanted),
        lambda: shared_box.cancel(wanted, "x"),
        lambda: shared_box.output(wanted, "x"),
        lambda: shared_box.branch(wanted, "copy"),
    )
    for call in calls:
        with pytest.raises(KernelNotFound) as caught:
            call()
        assert repr(kernel.name) in str(caught.value)
        assert "get_or_create" in str(caught.value)
    assert shared_box.destroy(wanted) is False


@pytest.mark.parametrize("wanted", ["", None, 7, b"x"])
def test_what_cannot_be_a_kernel_is_refused(shared_box: Box, wanted: object) -> None:
    for call in (shared_box.status, shared_box.destroy, lambda k: shared_box.execute(k, "1")):
        with pytest.raises(BadInput):
            call(wanted)


@pytest.mark.parametrize("language", ["ruby", "", "Python", None, 3])
def test_an_unsupported_language_is_refused(
    shared_box: Box, kernel: KernelRecord, language: object
) -> None:
    with pytest.raises(BadInput, match="'python' or 'bash'"):
        shared_box.execute(kernel, "1", language=language)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [None, 7, b"1", ["1"]])
def test_code_that_is_no_string_is_refused(
    shared_box: Box, kernel: KernelRecord, code: object
) -> None:
    with pytest.raises(BadInput, match="string"):
        shared_box.execute(kernel, code)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "5", True])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(
    shared_box: Box, kernel: KernelRecord, timeout: object
) -> None:
    with pytest.raises(BadInput, match="timeout"):
        shared_box.execute(kernel, "1", timeout=timeout)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [3e6, 1e12, 1e300])
def test_a_timeout_of_years_is_only_a_timeout(
    shared_box: Box, kernel: KernelRecord, timeout: float
) -> None:
    result = shared_box.execute(kernel, "6*7", timeout=timeout)
    assert result.return_value == "42"
    assert shared_box.execute(kernel, "echo 42", language="bash", timeout=timeout).output == "42\n"


@pytest.mark.parametrize("chosen", ["../../escape", "", "a/b", "a\0b", ".hidden", "x" * 500, 7])
def test_an_execution_id_cannot_lead_out_of_the_spool(
    shared_box: Box, kernel: KernelRecord, chosen: object
) -> None:
    with pytest.raises(BadInput, match="execution_id"):
        shared_box.execute(kernel, "1", execution_id=chosen)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "environ", [{"A": 1}, {1: "a"}, {"": "x"}, {"A=B": "x"}, {"A": "x\0y"}, {"A\0": "x"}]
)
def test_an_environment_that_no_process_can_have_is_refused(
    shared_box: Box, environ: dict[str, str]
) -> None:
    with pytest.raises(BadInput, match="environ"):
        shared_box.get_or_create("env", environ=environ)
    assert shared_box.destroy("env") is False


@pytest.mark.parametrize(
    "cwd", ["/no/such/folder", "/etc/passwd", "a\0b", "\ud800", "x" * 5000, 7, b"/tmp", False, ["/"]],
    ids=range(9),
)  # fmt: skip
def test_a_folder_that_cannot_be_entered_is_refused(shared_box: Box, cwd: object) -> None:
    with pytest.raises(BadInput, match="cwd") as caught:
        shared_box.get_or_create("nowhere", cwd=cwd)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 500
    assert shared_box.destroy("nowhere") is False


@pytest.mark.parametrize("tags", ["me", 7, ("a", "b"), {"a"}, [1], {1: "a"}, True, b"x", ""])
def test_tags_that_are_neither_a_mapping_nor_a_list_are_refused(
    shared_box: Box, tags: object
) -> None:
    with pytest.raises(BadInput, match="tags"):
        shared_box.get_or_create("tagged", tags=tags)  # type: ignore[arg-type]
    assert shared_box.destroy("tagged") is False


def test_a_whole_result_is_not_an_execution_id(shared_box: Box, kernel: KernelRecord) -> None:
    result = shared_box.execute(kernel, "print('x' * 9000)")
    calls = (
        lambda given: shared_box.output(kernel, given),
        lambda given: shared_box.search_output(kernel, given, "x"),
        lambda given: shared_box.cancel(kernel, given),
    )
    for call in calls:
        for given in (result, None, 7, [result]):
            with pytest.raises(BadInput, match=r"pass result\.execution_id") as caught:
                call(given)  # type: ignore[arg-type]
            assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", ["5", 1.5, None, True, ["x" * 10_000]])
def test_pages_and_limits_are_whole_numbers(
    shared_box: Box, kernel: KernelRecord, value: object
) -> None:
    given: dict[str, Any] = {"value": value}
    done = shared_box.execute(kernel, "print(1)").execution_id
    with pytest.raises(BadInput, match="start is a whole number"):
        shared_box.output(kernel, done, start=given["value"])
    with pytest.raises(BadInput, match="length is a whole number"):
        shared_box.output(kernel, done, length=given["value"])
    with pytest.raises(BadInput, match="limit is a whole number"):
        shared_box.search_output(kernel, done, "1", limit=given["value"])
    for nothing in (0, -1):
        with pytest.raises(BadInput, match="limit is a whole number from 1 on"):
            shared_box.search_output(kernel, done, "1", limit=nothing)
        with pytest.raises(BadInput, match="length is a whole number from 1 on"):
            shared_box.output(kernel, done, length=nothing)


NUMBERS = [variable for variable in VARIABLES if variable.default.replace(".", "").isdigit()]


@pytest.mark.parametrize("variable", NUMBERS, ids=lambda variable: variable.name)
@pytest.mark.parametrize(
    "text", ["many", "-1", "nan", "inf", "1,5", "0x10", "9" * 5000, "1e999", "--", "5 s", "\ud83d"]
)
def test_a_bad_number_in_the_environment_is_named(variable, text: str) -> None:
    with pytest.raises(BadInput) as caught:
        Settings.from_environment({variable.name: text})
    assert variable.name in str(caught.value)
    assert variable.default in str(caught.value)
    assert len(str(caught.value)) < 10_000


def test_a_bad_choice_in_the_environment_is_named() -> None:
    with pytest.raises(BadInput, match=r"KERNELBOX_STORE_BACKEND.*file, memory"):
        Settings.from_environment({"KERNELBOX_STORE_BACKEND": "cloud"})


def test_seconds_that_no_clock_can_count_still_work(tmp_path) -> None:
    seconds = ("EXECUTION_TIMEOUT", "KERNEL_IDLE_TIMEOUT", "START_TIMEOUT", "FORK_TIMEOUT")
    graces = ("INTERRUPT_GRACE", "KILL_GRACE")
    huge = {f"KERNELBOX_{name}": "1e300" for name in seconds + graces}
    small = {"KERNELBOX_KEEPER_LINGER": "0.1", "KERNELBOX_SPARES": "0"}
    home = {"KERNELBOX_HOME": str(tmp_path / "home")}
    with Box(Settings.from_environment({**huge, **small, **home})) as box:
        box.get_or_create("a")
        assert box.execute("a", "1+1").return_value == "2"
        box.branch("a", "b")
        assert box.execute("b", "2+2").return_value == "4"
        box.restart("a")
        box.wipe()


@pytest.mark.parametrize("code", ["x = 1\0y = 2", "\0", "# \0", "'''\0'''"])
def test_python_code_with_nul_bytes_is_a_syntax_error(
    shared_box: Box, kernel: KernelRecord, code: str
) -> None:
    result = shared_box.execute(kernel, code)
    assert result.status == "error"
    assert result.error is not None
    assert "null" in result.error.evalue
    assert result.state == "kept"
    assert shared_box.execute(kernel, "1+1").return_value == "2"


@pytest.mark.parametrize("code", ["x = '\ud800'", "\udfff", "print('a\ud83db')", "# \udc80"])
def test_python_code_with_lone_surrogates_is_an_error_and_no_death(
    shared_box: Box, kernel: KernelRecord, code: str
) -> None:
    result = shared_box.execute(kernel, code)
    assert result.status == "error"
    assert result.error is not None
    assert "surrogate" in result.error.evalue
    assert result.state == "kept"
    assert shared_box.execute(kernel, "1+1").return_value == "2"


@pytest.mark.parametrize("code", ["echo a\0b", "\0", "echo \ud800"])
def test_bash_code_that_bash_cannot_read_is_an_error_and_no_death(
    shared_box: Box, kernel: KernelRecord, code: str
) -> None:
    result = shared_box.execute(kernel, code, language="bash")
    assert result.status == "error"
    assert result.error is not None
    assert "NUL" in result.error.evalue or "surrogate" in result.error.evalue
    assert shared_box.execute(kernel, "echo alive", language="bash").output == "alive\n"


def test_lone_surrogates_and_nul_bytes_in_output_arrive(
    shared_box: Box, kernel: KernelRecord
) -> None:
    result = shared_box.execute(kernel, "print('a' + chr(0) + 'b' + chr(0xd800)); chr(0xdfff)")
    assert result.ok
    assert result.output == "a\0b\\ud800\n"
    assert result.return_value == "'\\udfff'"


def test_a_cell_of_ten_megabytes_runs(shared_box: Box, kernel: KernelRecord, stopwatch) -> None:
    text = "a" * 10_000_000
    watch = stopwatch()
    assert shared_box.execute(kernel, f"x = '{text}'; len(x)").return_value == "10000000"
    assert shared_box.execute(kernel, "len(x)").return_value == "10000000"
    watch.within(20)
    result = shared_box.execute(kernel, f"x='{text}'; echo ${{#x}}", language="bash", timeout=60)
    assert result.output == "10000000\n"
    watch.within(40)
