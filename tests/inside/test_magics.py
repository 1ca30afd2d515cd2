"""Magics and ``!commands``, as people know them from IPython."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from kernelbox import Box, ExecutionResult, KernelRecord

Run = Callable[..., ExecutionResult]


# -- magics -------------------------------------------------------------------------------------


def test_timing(ran: Run) -> None:
    result = ran("%time 6 * 7")
    assert result.return_value == "42"
    assert "Wall time" in result.output
    assert "per loop" in ran("%timeit -n1 -r1 1 + 1").output
    assert "Wall time" in ran("%%time\nx = 1").output
    assert ran("x").return_value == "1"


def test_capture(ran: Run) -> None:
    result = ran("%%capture held\nimport sys; print('out'); print('err', file=sys.stderr); 5")
    assert (result.output, result.stderr, result.return_value) == ("", "", None)
    assert ran("held.stdout, held.stderr, len(held.outputs)").return_value == (
        "('out\\n', 'err\\n', 1)"
    )


def test_files(ran: Run, tmp_path) -> None:
    assert ran("%%writefile note.txt\nhello").output == "Writing note.txt\n"
    assert (tmp_path / "note.txt").read_text() == "hello\n"
    (tmp_path / "script.py").write_text("value = 9\nprint('ran', __name__)\n")
    assert ran("%run script.py").output == "ran __main__\n"
    assert ran("value").return_value == "9"
    assert "value = 9" in ran("%load script.py").output


def test_folders(ran: Run, tmp_path) -> None:
    (tmp_path / "sub").mkdir()
    assert ran("%cd sub").output == f"{tmp_path}/sub\n"
    assert ran("import os; os.getcwd()").return_value == repr(str(tmp_path / "sub"))
    assert ran("%cd -").output == f"{tmp_path}\n"
    ran("os.chdir('sub')")
    assert ran("%pwd").return_value == repr(str(tmp_path / "sub"))
    assert ran("!pwd").output == f"{tmp_path}/sub\n"


def test_the_environment(ran: Run) -> None:
    assert ran("%env KB_TEST=yes").output == "env: KB_TEST=yes\n"
    assert ran("!echo $KB_TEST").output == "yes\n"
    assert ran("%env KB_TEST").return_value == "'yes'"
    assert ran("import os; os.environ['KB_TEST']").return_value == "'yes'"


def test_variables(ran: Run) -> None:
    ran("alpha, beta = 1, 'two'")
    assert ran("%who").output.split() == ["alpha", "beta"]
    assert ran("%who_ls").return_value == "['alpha', 'beta']"
    assert re.search(r"beta\s+str\s+two", ran("%whos").output)
    ran("%reset -f")
    assert ran("%who_ls").return_value == "[]"


def test_history(ran: Run) -> None:
    ran("a = 1")
    ran("b = 2")
    assert ran("%history -n 1-2").output == "   1: a = 1\n   2: b = 2\n"
    assert "b = 2" in ran("%history").output
    assert ran("%recall 1").output == "a = 1\n"


def test_extensions(ran: Run) -> None:
    ran("%load_ext autoreload")
    ran("%autoreload 0")
    assert ran("1 + 1").return_value == "2"


def test_pip_is_this_environments(ran: Run) -> None:
    assert ran("%pip --version", timeout=30).output.startswith("pip ")


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_script_magics(ran: Run, run: Run, shell: str) -> None:
    assert ran(f"%%{shell}\necho out; echo err >&2").output == "out\n"
    result = run(f"%%{shell}\nexit 4")
    assert result.error is not None
    assert result.error.ename == "CalledProcessError"
    assert "exit status 4" in result.error.evalue


def test_other_script_magics(ran: Run) -> None:
    assert ran("%%python\nprint(6 * 7)").output == "42\n"
    assert ran("%%script cat\npassed on").output == "passed on\n"
    assert ran("%%html\n<b>x</b>").outputs[0].data["text/html"] == "<b>x</b>\n"


def test_help_is_text(ran: Run) -> None:
    ran('def area(r: float) -> float:\n    """Of a circle."""\n    return 3 * r * r')
    for code in ("area?", "?area", "%pinfo area", "help(area)"):
        text = ran(code).output
        assert "area(r: float) -> float" in text
        assert "Of a circle." in text
        assert "\x1b" not in text
    assert "return 3 * r * r" in ran("area??").output
    assert "area" in ran("are*?").output


@pytest.mark.parametrize("code", ["%nosuch", "%%nosuch\nbody"], ids=["line", "cell"])
def test_an_unknown_magic_is_an_error(run: Run, code: str) -> None:
    result = run(code)
    assert result.error is not None
    assert result.error.ename == "UsageError"
    assert "nosuch" in result.error.evalue


def test_the_debugger_is_refused_where_nobody_answers(run: Run) -> None:
    run("1/0")
    result = run("%debug", timeout=5)
    assert result.error is not None
    assert result.error.ename == "StdinNotImplementedError"
    assert "on_input" in result.error.evalue
    run("%pdb on")
    result = run("1/0", timeout=5)
    assert result.error is not None
    assert result.error.ename == "ZeroDivisionError"
    assert "answers no questions" in result.stderr
    for code in ("breakpoint()\nx = 1", "import pdb; pdb.set_trace()\nx = 1"):
        stopped = run(code, timeout=5).error
        assert stopped is not None
        assert stopped.ename == "StdinNotImplementedError"


def test_the_debugger_works_where_somebody_answers(
    shared_box: Box, kernel: KernelRecord, run: Run
) -> None:
    run("def f(secret): return 1 / secret\nf(0)")
    answers = iter(["p 'secret is', secret", "q"])
    result = shared_box.execute(kernel, "%debug", on_input=lambda _: next(answers), timeout=10)
    assert result.ok
    assert "('secret is', 0)" in result.output


def test_an_editor_is_refused(run: Run) -> None:
    result = run("%edit", timeout=5)
    assert result.error is not None
    assert "%%writefile" in result.error.evalue


# -- commands -----------------------------------------------------------------------------------


def test_commands_write_to_both_streams(ran: Run) -> None:
    result = ran("!echo out; echo err >&2")
    assert (result.output, result.stderr) == ("out\n", "err\n")
    assert ran("ls").output == ""


def test_commands_know_variables(ran: Run) -> None:
    ran("name, n = 'world', 20")
    assert ran("!echo hello $name {n + 1} $$HOME").output.startswith("hello world 21 /")


def test_the_exit_code_is_kept(ran: Run) -> None:
    ran("!exit 3")
    assert ran("_exit_code").return_value == "3"
    ran("!true")
    assert ran("_exit_code").return_value == "0"


def test_a_commands_output_can_be_a_value(ran: Run) -> None:
    ran("lines = !printf 'a\\nb\\n'")
    assert ran("list(lines), lines.n").return_value == "(['a', 'b'], 'a\\nb')"
    assert ran("!!echo hi").return_value == "['hi']"


def test_a_command_reads_nothing_of_ours(ran: Run) -> None:
    assert ran("!cat; echo done").output == "done\n"


def test_an_interrupted_command_is_gone(
    shared_box: Box, kernel: KernelRecord, ran: Run, waiting: Callable[..., None], tmp_path
) -> None:
    code = f"!echo $$$$ > {tmp_path}/pid; touch {tmp_path}/started; exec sleep 100"
    items = shared_box.stream(kernel, code, timeout=30)
    import threading

    got: list[object] = []
    thread = threading.Thread(target=lambda: got.extend(items))
    thread.start()
    waiting((tmp_path / "started").exists, what="the command to start")
    began = time.monotonic()
    assert shared_box.interrupt(kernel)
    thread.join(10)
    result = got[-1]
    assert isinstance(result, ExecutionResult)
    assert result.error is not None
    assert result.error.ename == "KeyboardInterrupt"
    assert result.state == "kept"
    assert time.monotonic() - began < 5
    pid = (tmp_path / "pid").read_text().strip()
    assert ran(f"import os; os.path.exists('/proc/{pid}')").return_value == "False"
