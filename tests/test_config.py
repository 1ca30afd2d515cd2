"""Settings: what the environment may say, what it means, and what is refused in words."""

from __future__ import annotations

import dataclasses
import os
import warnings
from pathlib import Path

import pytest

from kernelbox import BadInput, Box, Settings
from kernelbox.config import VARIABLES, spelling
from kernelbox.config.checks import (
    check_code,
    check_language,
    check_name,
    check_timeout,
    check_whole,
)
from kernelbox.errors import in_short

# The table of seed 001: variable, default, field.
TEN = [
    ("KERNELBOX_MAX_RETRIES", 5, "max_retries"),
    ("KERNELBOX_EXECUTION_TIMEOUT", 60, "execution_timeout"),
    ("KERNELBOX_KERNEL_IDLE_TIMEOUT", 1800, "kernel_idle_timeout"),
    ("KERNELBOX_OUTPUT_CHAR_LIMIT", 10000, "output_char_limit"),
    ("KERNELBOX_STORE_BACKEND", "file", "store_backend"),
    ("KERNELBOX_REGISTRY_PATH", ".kernelbox/registry.json", "registry_path"),
    ("KERNELBOX_RUNTIME_DIR", ".kernelbox/runtime", "runtime_dir"),
    ("KERNELBOX_STARTUP_CODE", None, "startup_code"),
    ("KERNELBOX_KERNEL_TYPE", "python3", "kernel_type"),
    ("KERNELBOX_HOME", None, "home"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("variable", "default", "field"), TEN)
def test_the_ten_variables_have_their_defaults(
    variable: str, default: object, field: str, folder: Path
) -> None:
    settings = Settings.from_environment({})
    expected = str(folder / default) if str(default).startswith(".kernelbox") else default
    assert getattr(settings, field) == expected
    assert variable in {entry.name for entry in VARIABLES}


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("KERNELBOX_MAX_RETRIES", "2", "max_retries", 2),
        ("KERNELBOX_EXECUTION_TIMEOUT", "0.5", "execution_timeout", 0.5),
        ("KERNELBOX_EXECUTION_TIMEOUT", " 120 ", "execution_timeout", 120.0),
        ("KERNELBOX_KERNEL_IDLE_TIMEOUT", "0", "kernel_idle_timeout", 0.0),
        ("KERNELBOX_OUTPUT_CHAR_LIMIT", "77", "output_char_limit", 77),
        ("KERNELBOX_STORE_BACKEND", "memory", "store_backend", "memory"),
        ("KERNELBOX_REGISTRY_PATH", "/a/b.json", "registry_path", "/a/b.json"),
        ("KERNELBOX_RUNTIME_DIR", "/a/run", "runtime_dir", "/a/run"),
        ("KERNELBOX_STARTUP_CODE", "import os\nx = 1", "startup_code", "import os\nx = 1"),
        ("KERNELBOX_STARTUP_CODE", "", "startup_code", None),
        ("KERNELBOX_KERNEL_TYPE", "ipykernel", "kernel_type", "ipykernel"),
        ("KERNELBOX_HOME", "/somewhere", "home", "/somewhere"),
        ("KERNELBOX_HOME", "", "home", None),
        ("KERNELBOX_PRELOAD", "json, decimal  csv", "preload", ("json", "decimal", "csv")),
        ("KERNELBOX_SPARES", "0", "spares", 0),
    ],
)
def test_a_variable_sets_its_field(variable: str, text: str, field: str, value: object) -> None:
    assert getattr(Settings.from_environment({variable: text}), field) == value


def test_startup_code_keeps_its_indentation() -> None:
    code = "\n  if True:\n      x = 1\n"
    assert Settings.from_environment({"KERNELBOX_STARTUP_CODE": code}).startup_code == code


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("KERNELBOX_MAX_RETRIES", "0"),
        ("KERNELBOX_MAX_RETRIES", "many"),
        ("KERNELBOX_MAX_RETRIES", "2.5"),
        ("KERNELBOX_MAX_RETRIES", " "),
        ("KERNELBOX_EXECUTION_TIMEOUT", "0"),
        ("KERNELBOX_EXECUTION_TIMEOUT", "-1"),
        ("KERNELBOX_EXECUTION_TIMEOUT", "nan"),
        ("KERNELBOX_EXECUTION_TIMEOUT", "inf"),
        ("KERNELBOX_EXECUTION_TIMEOUT", "1 minute"),
        ("KERNELBOX_KERNEL_IDLE_TIMEOUT", "-0.1"),
        ("KERNELBOX_KERNEL_IDLE_TIMEOUT", "nan"),
        ("KERNELBOX_OUTPUT_CHAR_LIMIT", "0"),
        ("KERNELBOX_OUTPUT_CHAR_LIMIT", "10k"),
        ("KERNELBOX_STORE_BACKEND", "redis"),
        ("KERNELBOX_STORE_BACKEND", "File"),
        ("KERNELBOX_SPARES", "-1"),
        ("KERNELBOX_SPARES", "101"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_its_name(variable: str, text: str) -> None:
    with pytest.raises(BadInput, match=variable) as caught:
        Settings.from_environment({variable: text})
    assert repr(text) in str(caught.value)
    assert "Unset it for the default" in str(caught.value)
    assert caught.value.details["variable"] == variable


def test_an_empty_variable_means_the_default() -> None:
    assert Settings.from_environment({entry.name: "" for entry in VARIABLES}) == Settings()


def test_the_home_gives_registry_and_runtime(folder: Path) -> None:
    settings = Settings.from_environment({"KERNELBOX_HOME": "h"})
    assert settings.registry_path == str(folder / "h" / "registry.json")
    assert settings.runtime_dir == str(folder / "h" / "runtime")


def test_explicit_paths_beat_the_home(folder: Path) -> None:
    environ = {"KERNELBOX_HOME": "/h", "KERNELBOX_REGISTRY_PATH": "r.json"}
    settings = Settings.from_environment(environ)
    assert settings.registry_path == str(folder / "r.json")
    assert settings.runtime_dir == "/h/runtime"
    environ = {"KERNELBOX_HOME": "/h", "KERNELBOX_RUNTIME_DIR": "/elsewhere"}
    settings = Settings.from_environment(environ)
    assert settings.registry_path == "/h/registry.json"
    assert settings.runtime_dir == "/elsewhere"
    environ = {"KERNELBOX_HOME": "/h", "KERNELBOX_REGISTRY_PATH": ".kernelbox/registry.json"}
    settings = Settings.from_environment(environ)
    assert settings.registry_path == str(folder / ".kernelbox" / "registry.json")


def test_a_home_given_by_keyword_means_the_same_as_the_variable(folder: Path) -> None:
    by_variable = Settings.from_environment({"KERNELBOX_HOME": str(folder / "h")})
    by_keyword = Settings(home=str(folder / "h"))
    assert by_keyword.registry_path == by_variable.registry_path
    assert by_keyword.runtime_dir == by_variable.runtime_dir


def test_a_tilde_means_the_users_folder(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert Settings.from_environment({"KERNELBOX_HOME": "~/k"}).runtime_dir == str(
        folder / "k" / "runtime"
    )


def test_relative_paths_mean_the_folder_of_when_they_were_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.from_environment({})
    (folder / "other").mkdir()
    monkeypatch.chdir(folder / "other")
    assert settings.registry_path == str(folder / ".kernelbox" / "registry.json")


def test_settings_are_frozen_and_survive_the_wire() -> None:
    settings = Settings.from_environment({"KERNELBOX_PRELOAD": "json csv", "KERNELBOX_HOME": "/h"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.max_retries = 9  # type: ignore[misc]
    sent = {**settings.to_wire(), "of_a_newer_version": 1}
    assert Settings.from_wire(sent) == settings


def test_every_variable_has_a_field_with_the_same_default() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(Settings)}
    for variable in VARIABLES:
        assert variable.name == f"KERNELBOX_{variable.field.upper()}"
        assert variable.parse(variable.default) == fields.pop(variable.field)
    assert fields == {}


# -- by keyword -----------------------------------------------------------------------------


def test_what_is_given_by_keyword_beats_the_environment_and_the_rest_is_kept(folder: Path) -> None:
    environ = {"KERNELBOX_HOME": "h", "KERNELBOX_EXECUTION_TIMEOUT": "7", "KERNELBOX_SPARES": "1"}
    settings = Settings.from_environment(environ, execution_timeout=5, preload=["json"])
    assert (settings.execution_timeout, settings.spares, settings.preload) == (5, 1, ("json",))
    assert settings.runtime_dir == str(folder / "h" / "runtime")
    assert Settings.from_wire(settings.to_wire()) == settings


def test_a_variable_that_is_overruled_is_not_read() -> None:
    environ = {"KERNELBOX_SPARES": "many"}
    assert Settings.from_environment(environ, spares=3).spares == 3


def test_a_home_by_keyword_beats_the_paths_of_the_environment(folder: Path) -> None:
    environ = {"KERNELBOX_REGISTRY_PATH": "/e/r.json", "KERNELBOX_RUNTIME_DIR": "/e/run"}
    settings = Settings.from_environment(environ, home="/k", runtime_dir=".kernelbox/runtime")
    assert settings.registry_path == "/k/registry.json"
    assert settings.runtime_dir == str(folder / ".kernelbox" / "runtime")


def test_an_unknown_keyword_is_answered_with_the_known_ones() -> None:
    with pytest.raises(TypeError, match=r"no setting 'timeout'.*execution_timeout.*spool_total"):
        Settings.from_environment({}, timeout=5)


BAD_FIELDS = [
    ("execution_timeout", "abc", "a number of seconds above 0"),
    ("execution_timeout", "5", "a number of seconds above 0"),
    ("execution_timeout", 0, "a number of seconds above 0"),
    ("execution_timeout", float("nan"), "a number of seconds above 0"),
    ("execution_timeout", 10**400, "a number of seconds above 0"),
    ("kill_grace", -1, "a number of seconds, 0 or more"),
    ("kill_grace", None, "a number of seconds, 0 or more"),
    ("spares", 101, "a whole number from 0 to 100"),
    ("spares", True, "a whole number from 0 to 100"),
    ("max_retries", 2.5, "a whole number from 1 on"),
    ("store_backend", "redis", "one of file, memory"),
    ("startup_code", 7, "Python code"),
    ("kernel_type", None, "kernelspec"),
    ("preload", "numpy", "a list of names of modules"),
    ("preload", [1], "a list of names of modules"),
    ("home", 7, "the path of a folder"),
    ("home", "a\0b", "the path of a folder"),
    ("home", b"bytes", "the path of a folder"),
    ("runtime_dir", 7, "a path"),
    ("registry_path", b"bytes", "a path"),
]


@pytest.mark.parametrize(("field", "value", "takes"), BAD_FIELDS)
def test_a_field_that_cannot_be_used_is_refused_by_its_name(
    field: str, value: object, takes: str
) -> None:
    with pytest.raises(BadInput, match=f"{field} takes .*{takes}") as caught:
        Settings.from_environment({}, **{field: value})
    assert caught.value.details["field"] == field
    with pytest.raises(BadInput, match=f"{field} takes .*{takes}"):
        Box(Settings(**{field: value}))  # type: ignore[arg-type]


def test_a_secret_that_cannot_be_used_is_in_no_message() -> None:
    address = "https://me:secret@example.org/simple"
    with pytest.raises(BadInput, match="install_indexes takes a list") as caught:
        Settings(install_indexes=address).check()  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


def test_paths_may_be_path_objects(folder: Path) -> None:
    settings = Settings(home=folder / "h").check()  # type: ignore[arg-type]
    assert settings == Settings(home=str(folder / "h"))
    settings = Settings.from_environment({}, runtime_dir=folder / "r")
    assert settings.runtime_dir == str(folder / "r")


def test_the_defaults_fit() -> None:
    assert Settings().check() == Settings()
    assert Settings(home="").check().home == ""


# -- misspelled variables -------------------------------------------------------------------


@pytest.fixture
def nobody_warned_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spelling, "_told", set())
    monkeypatch.setattr(spelling, "_looked_at", -1)


@pytest.mark.usefixtures("nobody_warned_yet")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("KERNELBOX_TIMEOUT", "did you mean KERNELBOX_EXECUTION_TIMEOUT or KERNELBOX_KERNEL_IDLE_"),
        ("KERNELBOX_SPARE", "did you mean KERNELBOX_SPARES?"),
        ("KERNELBOX_MAX_RETRYS", "did you mean KERNELBOX_MAX_RETRIES?"),
        ("KERNELBOX_OUTPUT_LIMIT", "did you mean KERNELBOX_OUTPUT_CHAR_LIMIT?"),
        ("KERNELBOX_COLOUR", "KERNELBOX_COLOUR is no setting of KernelBox and changes nothing."),
    ],
)
def test_a_misspelled_variable_is_warned_of_once(name: str, words: str) -> None:
    with pytest.warns(UserWarning, match=f"^{name} is no setting") as caught:
        Settings.from_environment({name: "5", "KERNELBOX_SPARES": "1"})
    (warning,) = caught
    assert words in str(warning.message)
    assert warning.filename == __file__
    Settings.from_environment({name: "5"})  # a second warning would be an error here


@pytest.mark.usefixtures("nobody_warned_yet")
def test_a_variable_that_is_set_later_is_seen_too(monkeypatch: pytest.MonkeyPatch) -> None:
    Settings.from_environment()
    monkeypatch.setenv("KERNELBOX_PRELAOD", "json")
    with pytest.warns(UserWarning, match="did you mean KERNELBOX_PRELOAD"):
        Settings.from_environment()
    Settings.from_environment()


@pytest.mark.usefixtures("nobody_warned_yet")
def test_variables_of_our_scripts_and_of_others_are_let_be() -> None:
    names = ("TEST_VENV", "TEST_APT", "SOAK", "BENCH_DIR", "DEMO_VENV")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Settings.from_environment({f"KERNELBOX_{name}": "1" for name in names})
        Settings.from_environment({variable.name: "" for variable in VARIABLES})
        Settings.from_environment({"KERNELBOXES": "1", "HOME": os.environ.get("HOME", "/")})


# -- arguments ------------------------------------------------------------------------------


def test_whole_numbers_are_refused_by_the_arguments_name() -> None:
    assert check_whole("start", -5) == -5
    for value in ("5", 1.0, None, True):
        with pytest.raises(BadInput, match="start is a whole number, not"):
            check_whole("start", value)
    with pytest.raises(BadInput, match="limit is a whole number from 1 on, not 0"):
        check_whole("limit", 0, least=1)


def test_a_message_never_holds_a_page_of_what_was_given() -> None:
    for value in ("x" * 10**6, 10**5000, ["x" * 10**6], {"a": "x" * 10**6}, b"x" * 10**6):
        assert len(in_short(value)) < 200
    assert [in_short(value) for value in ("a", 5, 1.5, None, True)] == [
        "'a'", "5", "1.5", "None", "True",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["demo", "agent-7", "with space", "Ünïcödé-名前", "a.b", "x" * 128]
)
def test_ordinary_names_are_taken(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", " ", "\t", "..", ".", "...", "a/b", "/etc/passwd", "..\\x", "a\0b", "a\nb", "\x1b[31m",
     "\u202etxt", "x" * 129, "x" * 500, "\ud800", None, 7, b"bytes", ["a"]],
)  # fmt: skip
def test_bad_names_are_refused(name: object) -> None:
    with pytest.raises(BadInput, match="a kernel's name"):
        check_name(name)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "5", True, [1]])
def test_bad_timeouts_are_refused(timeout: object) -> None:
    with pytest.raises(BadInput, match="timeout"):
        check_timeout(timeout)


def test_languages_are_two() -> None:
    assert [check_language(name) for name in ("python", "bash")] == ["python", "bash"]
    for language in ("Python", "ruby", "", None, 3):
        with pytest.raises(BadInput, match="'python' or 'bash'"):
            check_language(language)


def test_code_is_a_string() -> None:
    assert check_code("\0 \ud800") == "\0 \ud800"
    for code in (b"1", None, 1, ["1"]):
        with pytest.raises(BadInput, match="code is a string"):
            check_code(code)
