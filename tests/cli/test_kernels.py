"""The commands about kernels, and those that go back and forth: what each prints."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path
from typing import Any

from processes import wait_until

from kernelbox import Box, KernelRecord
from kernelbox.walls import cgroups

RECORD = set(KernelRecord.__dataclass_fields__)


def test_create_prints_the_record(cli: Any, name: str, tmp_path: Path) -> None:
    words = ("--cwd", str(tmp_path), "--env", "WORD=a=b", "--tag", "owner=ada", "--session", "s")
    done = cli("create", "--name", name, *words)
    assert (done.code, set(done.json)) == (0, RECORD)
    assert (done.json["name"], done.json["tags"], done.json["session_name"]) == (
        name,
        {"owner": "ada"},
        "s",
    )
    code = "import os; os.environ['WORD'], os.getcwd()"
    value = cli("exec", "--name", name, code).json["return_value"]
    assert ast.literal_eval(value) == ("a=b", str(tmp_path))


def test_create_finds_what_is_there(cli: Any, name: str) -> None:
    first = cli("create", "--name", name).json
    assert cli("create", "--name", name).json["kernel_id"] == first["kernel_id"]
    assert cli("create", "--id", first["kernel_id"]).json["name"] == name


def test_create_copies_a_template(cli: Any, name: str) -> None:
    cli("exec", "--name", name, "x = 5")
    assert cli("create", "--name", f"{name}-copy", "--template", name).json["made_by"] == "template"
    assert cli("exec", "--name", f"{name}-copy", "x").json["return_value"] == "5"


def test_tags_are_words_or_pairs_and_no_mixture(cli: Any, name: str) -> None:
    assert cli("create", "--name", name, "--tag", "a", "--tag", "b").json["tags"] == ["a", "b"]
    done = cli("create", "--name", f"{name}-2", "--tag", "a", "--tag", "b=1")
    assert (done.code, done.error["error"]) == (6, "BadInput")
    done = cli("create", "--name", f"{name}-2", "--env", "NOVALUE")
    assert (done.code, "NOVALUE" in done.error["message"]) == (6, True)


def test_a_bad_name_says_what_is_wrong_with_it(cli: Any) -> None:
    done = cli("create", "--name", "a/b")
    assert (done.code, done.error["error"]) == (6, "BadInput")
    assert "'a/b'" in done.error["message"]


def test_list_and_wipe(own_cli: Any) -> None:
    assert own_cli("list").json == {"kernels": []}
    ids = [own_cli("create", "--name", word).json["kernel_id"] for word in ("a", "b")]
    for words in ((), ("--refresh",)):
        listed = own_cli("list", *words).json["kernels"]
        assert [set(record) for record in listed] == [RECORD, RECORD]
        assert [record["kernel_id"] for record in listed] == ids
    done = own_cli("wipe")
    assert (done.code, sorted(done.json["destroyed"])) == (0, sorted(ids))
    assert own_cli("wipe").json == {"destroyed": []}


def test_status_says_what_a_kernel_does(cli: Any, name: str) -> None:
    record = cli("create", "--name", name).json
    for words in (("--name", name), ("--id", record["kernel_id"])):
        done = cli("status", *words)
        assert (done.code, list(done.json)[:2]) == (0, ["alive", "kernel"])
        assert done.json["alive"] is True
        assert done.json["kernel"]["kernel_id"] == record["kernel_id"]
        assert (done.json["running"], done.json["queued"]) == (None, 0)


def test_an_unknown_kernel_is_not_alive(cli: Any) -> None:
    done = cli("status", "--name", "nobody")
    assert (done.code, done.json) == (3, {"alive": False, "kernel": None})
    assert done.error["error"] == "KernelNotFound"
    assert "kernelbox create --name nobody" in done.error["hint"]


def test_a_lost_kernel_has_a_code_of_its_own(own_cli: Any) -> None:
    own_cli("exec", "--name", "a", "x = 1", KERNELBOX_KERNEL_IDLE_TIMEOUT="0.1")
    with Box(own_cli.settings) as box:
        wait_until(lambda: box.list_kernels() == [], what="the idle kernel to end")
    done = own_cli("status", "--name", "a")
    assert (done.code, done.json) == (4, {"alive": False, "kernel": None})
    assert (done.error["error"], "idle" in done.error["message"]) == ("KernelLost", True)
    done = own_cli("exec", "--name", "a", "'x' in globals()")
    assert (done.code, done.json["return_value"], done.json["state"]) == (0, "False", "lost")


def test_restart_prints_the_record(cli: Any, name: str) -> None:
    before = cli("create", "--name", name).json
    after = cli("restart", "--name", name).json
    assert (after["kernel_id"], after["epoch"]) == (before["kernel_id"], before["epoch"] + 1)


def test_destroy_says_whether_there_was_one(cli: Any, name: str) -> None:
    record = cli("create", "--name", name).json
    done = cli("destroy", "--id", record["kernel_id"])
    assert (done.code, done.json) == (0, {"destroyed": True})
    done = cli("destroy", "--name", name)
    assert (done.code, done.json) == (0, {"destroyed": False})


def test_interrupt_says_whether_anything_ran(cli: Any, name: str, kernels: Box) -> None:
    cli("create", "--name", name)
    assert cli("interrupt", "--name", name).json == {"interrupted": False}
    code = "import time\nwhile True: time.sleep(0.01)"
    with cli.started("exec", "--name", name, "--execution-id", "mine", code) as process:
        wait_until(lambda: kernels.status(name)["running"], what="the cell to run")
        assert cli("interrupt", "--name", name, "--execution", "other").json == {
            "interrupted": False
        }
        assert cli("interrupt", "--name", name, "--execution", "mine").json == {"interrupted": True}
        assert process.wait() == 1, "interrupted by somebody else: the code failed"


def test_branches_are_made_all_at_once(cli: Any, name: str) -> None:
    cli("exec", "--name", name, "x = 1")
    names = [f"{name}-a", f"{name}-b"]
    done = cli("branch", "--name", name, "--to", names[0], "--to", names[1], "--reseed")
    assert [record["name"] for record in done.json["kernels"]] == names
    assert cli("exec", "--name", names[1], "x").json["return_value"] == "1"
    done = cli("branch", "--name", name, "--to", names[0])
    assert (done.code, done.error["error"]) == (6, "BadInput")


def test_checkpoints_are_made_listed_gone_back_to_and_dropped(cli: Any, name: str) -> None:
    cli("exec", "--name", name, "x = 1")
    made = cli("checkpoint", "--name", name, "--label", "one").json["checkpoint_id"]
    cli("exec", "--name", name, "x = 2")
    (listed,) = cli("checkpoints", "--name", name).json["checkpoints"]
    assert (listed["checkpoint_id"], listed["label"]) == (made, "one")
    assert set(cli("rewind", "--name", name, "--to", "one").json) == RECORD
    assert cli("exec", "--name", name, "x").json["return_value"] == "1"
    assert cli("checkpoint", "--name", name, "--drop", made).json == {"dropped": made}
    done = cli("rewind", "--name", name, "--to", "one")
    assert (done.code, done.error["error"]) == (3, "CheckpointNotFound")
    assert f"kernelbox checkpoints --name {name}" in done.error["hint"]


def test_undo_goes_back_cells(cli: Any, name: str) -> None:
    for code in ("x = 1", "x = 2", "x = 3"):
        cli("exec", "--name", name, code, KERNELBOX_UNDO="5")
    assert cli("undo", "--name", name, "-n", "2").json["epoch"] == 2
    assert cli("exec", "--name", name, "x").json["return_value"] == "1"
    assert cli("undo", "--name", name, "-n", "99").code == 3


def test_a_session_is_saved_and_loaded(cli: Any, name: str, tmp_path: Path) -> None:
    path = str(tmp_path / "a.session")
    cli("exec", "--name", name, "x = {'a': 1}; g = (n for n in ())")
    report = cli("save", "--name", name, "-f", path).json
    assert (report["path"], "x" in report["variables"], "g" in report["failures"]) == (
        path,
        True,
        True,
    )
    assert cli("load", "--name", f"{name}-2", "-f", path).json["made_by"] == "load"
    assert cli("exec", "--name", f"{name}-2", "x").json["return_value"] == "{'a': 1}"


def test_a_session_of_another_home_is_refused_unless_trusted(
    cli: Any, own_cli: Any, name: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "a.session")
    cli("exec", "--name", name, "x = 1")
    cli("save", "--name", name, "-f", path)
    done = own_cli("load", "--name", "a", "-f", path)
    assert (done.code, done.error["error"]) == (6, "BadInput")
    assert own_cli("load", "--name", "a", "-f", path, "--trust").json["name"] == "a"


# -- looking inside -----------------------------------------------------------------------------


def test_logs_have_all_that_an_execution_printed(cli: Any, name: str) -> None:
    code = "for n in range(5000): print('line', n)"
    done = cli("exec", "--name", name, "--execution-id", "long", code)
    assert done.json["truncated"] is True
    words = ("logs", "--name", name, "--execution", "long")
    whole = cli(*words).json
    assert (whole["total"], whole["text"].count("\n"), whole["missing"]) == (48890, 5000, 0)
    assert cli(*words, "--start", "-10").json["text"] == "line 4999\n"
    assert cli(*words, "--start", "5", "--length", "1").json["text"] == "0"
    found = cli(*words, "--search", "432[01]$").json["matches"]
    assert [match["text"] for match in found] == ["line 4320", "line 4321"]
    assert cli(*words, "--human", "--search", "4999").stdout == b"5000: line 4999\n"
    assert cli(*words, "--stderr").json["text"] == ""
    assert cli("logs", "--name", name).json == whole  # of what ran last


def test_an_execution_that_is_not_kept_is_not_found(cli: Any, name: str) -> None:
    cli("create", "--name", name)
    done = cli("logs", "--name", name, "--execution", "never")
    assert (done.code, done.error["error"]) == (3, "ExecutionNotFound")
    assert cli("logs", "--name", name).code == 3  # nothing was run
    assert cli("logs", "--name", name, "--execution", "x", "--search", "(").code in (3, 6)


def test_logs_of_the_keeper_are_read(own_cli: Any) -> None:
    from kernelbox.keeper.home import locate, prepare

    assert own_cli("logs").json == {"logs": []}
    home = locate(own_cli.settings)
    prepare(home)
    log = Path(home.log_path)
    log.write_bytes(b"one\ntwo\xff\nthree\n")
    (found,) = own_cli("logs", "--lines", "2").json["logs"]
    assert (found["source"], found["path"], found["text"]) == (
        "keeper",
        str(log),
        "two\ufffd\nthree\n",
    )
    assert b"three\n" in own_cli("logs", "--human").stdout
    log.unlink()
    shutil.rmtree(log.parent)


def test_config_says_where_each_setting_comes_from(own_shell: Any, tmp_path: Path) -> None:
    done = own_shell(
        "config",
        KERNELBOX_UNDO="7",
        KERNELBOX_RUNTIME_DIR=str(tmp_path / "run"),
        KERNELBOX_API_TOKEN="geheim",
    )
    settings = done.json["settings"]
    assert done.code == 0
    assert (settings["undo"]["value"], settings["undo"]["source"]) == (7, "environment")
    assert (settings["runtime_dir"]["value"], settings["runtime_dir"]["source"]) == (
        str(tmp_path / "run"),
        "environment",
    )
    assert settings["registry_path"]["source"] == "KERNELBOX_HOME"
    assert (settings["max_retries"]["value"], settings["max_retries"]["source"]) == (5, "default")
    assert all(fact["help"] for fact in settings.values())
    assert b"geheim" not in done.stdout


def test_config_names_the_setting_that_cannot_be_used(own_cli: Any) -> None:
    done = own_cli("config", KERNELBOX_UNDO="many")
    assert done.code == 6
    assert "KERNELBOX_UNDO" in done.json["settings"]["undo"]["problem"]
    done = own_cli("list", KERNELBOX_UNDO="many")
    assert (done.code, done.error["error"]) == (6, "BadInput")


def test_a_misspelt_setting_is_a_warning_in_json(own_shell: Any) -> None:
    done = own_shell("config", KERNELBOX_UNDOO="1")
    assert done.code == 0
    assert "KERNELBOX_UNDOO" in done.error["warning"]


def test_doctor_starts_a_real_kernel_and_leaves_nothing(own_shell: Any) -> None:
    done = own_shell("doctor")
    checks = {check["check"]: check for check in done.json["checks"]}
    assert (done.code, done.json["ok"]) == (0, True), done.stdout
    assert checks["a real kernel"]["status"] == "ok"
    assert all(check["do"] for check in checks.values() if check["status"] != "ok")
    assert {"python", "fork", "landlock", "cgroups", "kvm", "disk", "memory"} <= set(checks)


def test_doctor_tells_of_limits_what_a_kernel_would_find(shell: Any) -> None:
    done = shell("doctor", "--no-kernel")
    (check,) = (check for check in done.json["checks"] if check["check"] == "cgroups")
    found = cgroups.find()
    if isinstance(found, str):
        assert check["status"] == "warn"
        assert "no control group can be used" in check["found"]
    else:
        assert check["status"] == "ok"
        assert found.describe() in check["found"]


def test_doctor_for_people_is_a_table(shell: Any) -> None:
    done = shell("doctor", "--no-kernel", "--human")
    assert (done.code, done.stderr) == (0, b"")
    assert b"landlock" in done.stdout


def test_doctor_fails_where_the_home_cannot_be(own_shell: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = own_shell("doctor", "--no-kernel", KERNELBOX_HOME=str(tmp_path / "file"))
    (check,) = (check for check in done.json["checks"] if check["check"] == "home")
    assert (done.code, done.json["ok"], check["status"]) == (1, False, "fail")
    assert "KERNELBOX_HOME" in check["do"]


def test_every_table_for_people_can_be_drawn(cli: Any, name: str, tmp_path: Path) -> None:
    cli("exec", "--name", name, "x = 1")
    checkpoint = ("checkpoint", "--name", name, "--label", "one")
    path = str(tmp_path / "s")
    for words, said in (
        (("create", "--name", name), name),
        (("list",), name),
        (("status", "--name", name), "interpreter"),
        (checkpoint, ""),
        (("checkpoints", "--name", name), "one"),
        (("branch", "--name", name, "--to", f"{name}-b"), f"{name}-b"),
        (("save", "--name", name, "-f", path), path),
        (("top", "--once"), name),
        (("config",), "KERNELBOX_HOME"),
        (("interrupt", "--name", name), "nothing ran"),
        (("destroy", "--name", f"{name}-b"), "destroyed"),
    ):
        done = cli(*words, "--human")
        assert (done.code, done.stderr) == (0, b""), words
        assert said in done.stdout.decode(), words
        assert not done.stdout.startswith(b"{")


def test_for_people_a_failure_is_words(cli: Any) -> None:
    done = cli("status", "--name", "nobody", "--human")
    assert (done.code, done.stdout) == (3, b"")
    assert done.stderr.startswith(b"KernelNotFound: no kernel named 'nobody'")


def test_top_on_a_pipe_is_json(cli: Any, name: str) -> None:
    cli("exec", "--name", name, "x = bytearray(20_000_000)")
    (row,) = (row for row in cli("top").json["kernels"] if row["name"] == name)
    assert (row["status"], row["running"], row["queued"]) == ("idle", None, 0)
    assert row["memory_kb"] > 19_000
    assert row["cpu_percent"] is not None
