"""Kernels that a Jupyter client starts through the kernelspec: they end when they should."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from jupyter_client.manager import KernelManager
from jupyter_clients import Client, text
from processes import alive

from kernelbox import Box, launcher
from kernelbox.launcher import kernel_name, launch_settings, read_connection
from kernelbox.warden.lanes import jupyter

pytestmark = [pytest.mark.jupyter, pytest.mark.usefixtures("kernelspec_home")]


@pytest.fixture
def manager() -> Iterator[KernelManager]:
    made = KernelManager(kernel_name="kernelbox")
    made.start_kernel()
    yield made
    if made.has_kernel:
        made.shutdown_kernel(now=True)
    made.context.destroy(linger=0)


@pytest.fixture
def client(manager: KernelManager) -> Iterator[Client]:
    made = Client(manager.client())
    try:
        yield made.ready()
    finally:
        made.raw.stop_channels()


def launcher_pid(manager: KernelManager) -> int:
    return int(manager.provisioner.pid)


def interpreter_pid(client: Client) -> int:
    return int(client.value("__import__('os').getpid()"))


def gone(pid: int) -> bool:
    return not alive(pid)


def test_a_launched_kernel_runs_cells_in_the_clients_folder(client: Client) -> None:
    assert client.value("__import__('os').getcwd()") == repr(os.getcwd())


def test_a_shutdown_ends_kernel_and_launcher(
    manager: KernelManager, client: Client, waiting: Callable[..., None]
) -> None:
    pids = [launcher_pid(manager), interpreter_pid(client)]
    manager.shutdown_kernel()
    for pid in pids:
        waiting(lambda pid=pid: gone(pid), what=f"process {pid} to end")


def test_a_restart_gives_a_fresh_kernel_on_the_same_ports(
    manager: KernelManager, client: Client
) -> None:
    client.run("x = 1")
    before = interpreter_pid(client)
    ports = manager.ports
    manager.restart_kernel()
    assert manager.ports == ports
    client.ready()
    assert client.value("'x' in globals()") == "False"
    assert interpreter_pid(client) != before


def test_a_client_interrupts_through_its_manager(manager: KernelManager, client: Client) -> None:
    msg_id = client.start("import time; time.sleep(60)")
    manager.interrupt_kernel()
    assert client.reply_to(msg_id)["content"]["ename"] == "KeyboardInterrupt"


def test_an_interrupt_signal_to_the_launcher_interrupts_the_cell(
    manager: KernelManager, client: Client
) -> None:
    msg_id = client.start("import time; time.sleep(60)")
    os.kill(launcher_pid(manager), signal.SIGINT)
    assert client.reply_to(msg_id)["content"]["ename"] == "KeyboardInterrupt"
    assert manager.is_alive()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_the_kernel_ends_with_its_launcher(
    manager: KernelManager, client: Client, waiting: Callable[..., None], number: int
) -> None:
    pid = interpreter_pid(client)
    os.kill(launcher_pid(manager), number)
    waiting(lambda: gone(pid), what="the interpreter to end")
    waiting(lambda: not manager.is_alive(), what="the launcher to end")


def test_a_dead_interpreter_is_replaced_and_the_launcher_stays(
    manager: KernelManager, client: Client
) -> None:
    before = launcher_pid(manager)
    reply, _ = client.run("__import__('os').kill(__import__('os').getpid(), 9)")
    assert reply["ename"] == "KernelDied"
    assert client.value("1 + 1") == "2"
    assert manager.is_alive()
    assert launcher_pid(manager) == before


def test_the_launcher_ends_with_the_warden(
    manager: KernelManager, client: Client, waiting: Callable[..., None]
) -> None:
    warden = psutil.Process(interpreter_pid(client)).parent().parent()
    warden.kill()
    waiting(lambda: not manager.is_alive(), what="the launcher to end")


@pytest.mark.parametrize("moment", [0.0, 0.1, 0.2, 0.4, 0.8])
def test_a_launcher_killed_while_it_starts_leaves_no_kernel(moment: float) -> None:
    manager = KernelManager(kernel_name="kernelbox")
    manager.start_kernel()
    time.sleep(moment)  # not a wait: the moment of bad luck
    manager.shutdown_kernel(now=True)
    manager.context.destroy(linger=0)
    # kernelspec_home proves that nothing is left.


def test_a_kernel_ends_with_the_client_that_started_it(
    kernelspec_home: Path, waiting: Callable[..., None]
) -> None:
    program = """
import time
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="kernelbox")
shown = []
client.execute_interactive("import os; print(os.getpid())", output_hook=shown.append)
pid = "".join(m["content"]["text"] for m in shown if m["msg_type"] == "stream")
print(pid.strip(), manager.provisioner.pid, flush=True)
time.sleep(600)
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        process.kill()
    assert len(pids) == 2
    for pid in pids:
        waiting(lambda pid=pid: gone(pid), what=f"process {pid} to end")


def test_agents_and_notebooks_meet_in_a_launched_kernel(
    manager: KernelManager, client: Client
) -> None:
    client.run("from_notebook = 'hello'")
    with Box() as box:
        (record,) = (r for r in box.list_kernels() if r.connection_file == manager.connection_file)
        assert box.execute(record, "from_notebook").return_value == "'hello'"
        result = box.execute(record, "print('to all')")
        assert text(client.published_until(result.execution_id)) == "to all\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "JSON object"),
        (json.dumps({"transport": "ipc", "ip": "/tmp/x"}), "tcp"),
    ],
)
def test_a_connection_file_that_cannot_be_served_is_refused_in_words(
    tmp_path: Path, content: str | None, words: str
) -> None:
    path = tmp_path / "kernel.json"
    if content is not None:
        path.write_text(content)
    command = [sys.executable, "-m", "kernelbox.launcher", "-f", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_connection_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "kernel.json"
    path.write_text('{"shell_port": 5, "key": "k"}')
    assert read_connection(str(path)) == {"shell_port": 5, "key": "k"}


def test_launched_kernels_have_a_home_of_the_user(tmp_path: Path) -> None:
    settings = launch_settings({"XDG_STATE_HOME": str(tmp_path)})
    assert settings.registry_path == str(tmp_path / "kernelbox" / "registry.json")
    assert settings.kernel_idle_timeout == 0
    chosen = launch_settings({"KERNELBOX_HOME": str(tmp_path / "mine"), "KERNELBOX_SPARES": "0"})
    assert chosen.runtime_dir == str(tmp_path / "mine" / "runtime")
    assert chosen.spares == 0


def test_names_of_launched_kernels_are_unlike_and_valid() -> None:
    from kernelbox.config import check_name

    for path in ("/x/kernel-12.json", "/x/" + "y" * 300 + ".json", "/x/a b\nc.json", "/x/.json"):
        assert check_name(kernel_name(path, 7)).endswith("-7")
    assert kernel_name("/x/kernel-12.json", 7) == "kernel-12-7"


def test_launcher_and_door_agree_on_the_mark() -> None:
    assert launcher.LAUNCHED == jupyter.LAUNCHED


@pytest.mark.slow
def test_nbclient_executes_a_notebook_with_a_plot(kernelspec_home: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell("import matplotlib.pyplot as plt\nx = 20"),
            nbformat.v4.new_code_cell("plt.plot([1, 2, x])\nplt.title('a plot');"),
            nbformat.v4.new_code_cell("print('sum', x + 22)\nx"),
        ]
    )
    nbclient.NotebookClient(notebook, kernel_name="kernelbox", timeout=60).execute()
    (picture,) = (o for o in notebook.cells[1].outputs if "image/png" in o.get("data", {}))
    assert picture.output_type == "display_data"
    stream, result = notebook.cells[2].outputs
    assert stream.text == "sum 42\n"
    assert result.data["text/plain"] == "20"
    failing = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1/0")])
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="ZeroDivisionError"):
        nbclient.NotebookClient(failing, kernel_name="kernelbox", timeout=60).execute()


@pytest.mark.slow
def test_jupyter_console_attaches_and_shares_the_variables(box: Box) -> None:
    pytest.importorskip("jupyter_console")
    record = box.get_or_create("for-the-console")
    box.execute(record, "from_agent = 6 * 7")
    command = [sys.executable, "-m", "jupyter_console", "--existing", record.connection_file]
    console = subprocess.run(
        [*command, "--simple-prompt"],
        input="print('seen', from_agent)\nfrom_console = 'hi'\nexit(keep_kernel=True)\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "seen 42" in console.stdout, console.stderr
    assert box.execute(record, "from_console").return_value == "'hi'"
