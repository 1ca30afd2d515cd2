"""What is decided without a kernel: policies, requirements, lines of pip, pip's own settings, and
what uv's complaints mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelbox.inside import pip_lines
from kernelbox.inside.packages import InstallFailed
from kernelbox.installs.complaints import understood
from kernelbox.installs.failing import Failed, in_one_line
from kernelbox.installs.indexes import environment_for_uv, host_environment, pip_settings
from kernelbox.installs.policy import Policy
from kernelbox.installs.requirements import MOST, read, read_all


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("pandas", "pandas"),
        (" Pandas == 2.* ", "pandas==2.*"),
        ("Foo._Bar>=1,<2", "foo-bar<2,>=1"),
        ("pandas[Excel, aws]~=2.1", "pandas[aws,excel]~=2.1"),
        ("six; python_version >= '3'", "six"),
    ],
)
def test_a_requirement_has_one_spelling(text: str, written: str) -> None:
    assert read(text).text == written


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "-r /etc/passwd",
        "--index-url=https://evil.example/simple",
        "-e .",
        ".",
        "./evil.whl",
        "/tmp/evil-1.0-py3-none-any.whl",
        "~/evil.whl",
        "https://evil.example/evil-1.0-py3-none-any.whl",
        "git+https://evil.example/evil",
        "evil @ https://evil.example/evil-1.0-py3-none-any.whl",
        "evil @ file:///etc/passwd",
        "six\n--index-url https://evil.example",
        "six --index-url https://evil.example",
        "six\r\n-e .",
        "six\0",
        "sïx",
        "six # comment",
        "six; python_version < '3'",
        "${HOME}",
        "six==1.0 --hash=sha256:00",
        "a" * 400,
        "a" * 81,
        "../../etc",
    ],
)
def test_what_is_more_than_a_name_and_a_version_is_refused(text: str) -> None:
    with pytest.raises(Failed) as caught:
        read(text)
    assert caught.value.reason == "bad_request"
    assert "\n" not in caught.value.words


def test_only_so_many_at_once_and_each_but_once() -> None:
    with pytest.raises(Failed, match="at most"):
        read_all(["six"] * (MOST + 1), Policy())
    with pytest.raises(Failed, match="differently"):
        read_all(["six==1", "SIX==2"], Policy())
    assert [each.text for each in read_all(["six", "Six"], Policy())] == ["six"]


def test_a_policy_knows_names_in_every_spelling() -> None:
    policy = Policy(allow=("Foo_*", "six"), block=("foo.evil*",))
    assert policy.refuses("FOO-bar", asked_for=True) == ""
    assert "blocked" in policy.refuses("foo__Evil-2", asked_for=True)
    assert "blocked" in policy.refuses("foo-evil", asked_for=False)
    assert "not allowed" in policy.refuses("pandas", asked_for=True)
    assert policy.refuses("pandas", asked_for=False) == ""  # six may depend on it


def test_a_policy_says_who_may_install() -> None:
    assert Policy().refuses_everything(cell=True) == ""
    assert "KERNELBOX_INSTALL=callers" in Policy(who="callers").refuses_everything(cell=True)
    assert Policy(who="callers").refuses_everything(cell=False) == ""
    assert "off" in Policy(who="off").refuses_everything(cell=False)


def test_a_policy_travels() -> None:
    policy = Policy(allow=("a",), indexes=("https://one.example",), source=True)
    assert Policy.from_wire(policy.to_wire()) == policy


# -- where packages come from -------------------------------------------------------------------


def test_uv_is_told_what_pip_was_told(tmp_path: Path) -> None:
    folder = tmp_path / ".config" / "pip"
    folder.mkdir(parents=True)
    (folder / "pip.conf").write_text(
        "[global]\nindex-url = https://one.example/simple\ncert = /a.pem\n"
        "extra-index-url =\n    https://two.example/simple\n    https://three.example/simple\n"
    )
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "none")}
    environ["PIP_INDEX_URL"] = "https://best.example/simple"
    environ["PIP_EXTRA_INDEX_URL"] = "https://two.example/simple https://three.example/simple"
    given = environment_for_uv(environ, Policy())
    assert given["UV_DEFAULT_INDEX"] == "https://best.example/simple"
    assert given["UV_INDEX"] == "https://two.example/simple https://three.example/simple"
    assert given["SSL_CERT_FILE"] == environ.get("PIP_CERT", "/a.pem")
    assert not [name for name in given if name.startswith("PIP_")]
    assert pip_settings({**environ, "PIP_NO_INDEX": "1"})["no-index"] == "1"


def test_what_uv_was_told_itself_beats_pip(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "UV_DEFAULT_INDEX": "https://uv.example/simple"}
    given = environment_for_uv({**environ, "PIP_INDEX_URL": "https://pip.example"}, Policy())
    assert given["UV_DEFAULT_INDEX"] == "https://uv.example/simple"
    assert "UV_INDEX" not in given


def test_the_indexes_of_the_policy_are_the_only_ones(tmp_path: Path) -> None:
    environ = {
        "HOME": str(tmp_path),
        "UV_INDEX": "https://else.example/simple",
        "UV_FIND_LINKS": "/else",
        "UV_CONFIG_FILE": "/else/uv.toml",
        "PIP_FIND_LINKS": "/else",
    }
    only = Policy(indexes=("https://a.example/simple", "https://b.example/simple"))
    given = environment_for_uv(environ, only)
    assert "else" not in " ".join(given.values())
    assert given["UV_DEFAULT_INDEX"] == "https://a.example/simple"
    assert given["UV_INDEX"] == "https://b.example/simple"
    assert given["UV_NO_CONFIG"] == "1"


def test_no_secret_of_the_caller_goes_to_the_installer() -> None:
    given = host_environment(
        {"AWS_SECRET_ACCESS_KEY": "x", "PYTHONPATH": "/x", "LD_PRELOAD": "/x", "PATH": "/bin",
         "UV_TARGET": "/x", "UV_PYTHON": "/x", "https_proxy": "http://p", "PIP_CERT": "/c"}
    )  # fmt: skip
    assert given == {"PATH": "/bin", "https_proxy": "http://p", "PIP_CERT": "/c"}


# -- lines of pip -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("pip install six", ["six"]),
        ("pip3 install -q 'six>=1.0'", ["-q", "six>=1.0"]),
        ("python -m pip install six", ["six"]),
        ("/usr/bin/python3.11 -m pip install six", ["six"]),
        ("uv pip install six", ["six"]),
        ("sudo pip install six", ["six"]),
        ("pip install six > /dev/null 2>&1", ["six"]),
        ("pip install six 2>&1 | tail -1", ["six"]),
        ("pip install six | grep -v already", ["six"]),
        ("pip install six>=1.0 toolz<2 -q", ["six>=1.0", "toolz<2", "-q"]),
        ("pip install six >=1.0", ["six>=1.0"]),
        ("pip install six > 1.txt", ["six"]),
        ("pip install six && rm -rf x", None),
        ("pip install six; ls", None),
        ("pip install $(ls)", None),
        ("pip list", None),
        ("echo pip install six", None),
        ("pip uninstall six", None),
        ("pipx install six", None),
        ("pip install 'unclosed", None),
    ],
)
def test_a_shells_line_is_understood_or_left_alone(line: str, words: list[str] | None) -> None:
    assert pip_lines.of_shell(line) == words


def test_options_that_change_nothing_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "needs.txt"
    file.write_text("# wanted\nsix>=1  # why\n\niniconfig\n")
    words = ["-q", "--upgrade", "--user", "--no-cache-dir", "toolz", "-r", str(file)]
    assert pip_lines.understood(words) == (["toolz", "six>=1", "iniconfig"], True, True)


@pytest.mark.parametrize(
    "words",
    [
        ["--index-url", "https://evil.example", "six"],
        ["-i", "https://evil.example", "six"],
        ["--extra-index-url=https://evil.example", "six"],
        ["--target", "/", "six"],
        ["--no-binary", ":all:", "six"],
        ["-e", "."],
        ["-r", "/nowhere/at/all"],
        [],
    ],
)
def test_options_that_would_decide_something_are_refused(words: list[str]) -> None:
    with pytest.raises(InstallFailed):
        pip_lines.understood(words)


# -- complaints ---------------------------------------------------------------------------------

_NO_SOLUTION = "error: No solution found when resolving dependencies\n  cause: Because"


@pytest.mark.parametrize(
    ("said", "reason", "words"),
    [
        (f"{_NO_SOLUTION} nope was not found in the package registry and you require nope, we can conclude that your requirements are unsatisfiable.", "not_found", "no package 'nope'"),
        (f"{_NO_SOLUTION} there is no version of six==99 and you require six==99, we can conclude", "no_version", "six==99"),
        (f"{_NO_SOLUTION} all versions of docopt have no usable wheels\n\nhint: Wheels are required for `docopt` because", "no_wheel", "docopt has no wheel"),
        (f"{_NO_SOLUTION} foo==1.0 has no wheels with a matching Python ABI tag (e.g., `cp311`)", "no_wheel", "foo has no wheel"),
        (f"{_NO_SOLUTION} a==1 depends on b<2 and you require b==2,\n      we can conclude that a cannot be used.", "conflict", "a==1 depends on b<2"),
        (f"{_NO_SOLUTION} d==4 depends on a>=3 and d==5 has no usable wheels, we can conclude that d>=4 depends on a>=3.\n  And because you require d>=4 and a<3, we can conclude that your requirements are unsatisfiable.\n\nhint: Wheels are required for `d` because", "conflict", "so d>=4 depends on a>=3; and you require d>=4 and a<3"),
        (f"{_NO_SOLUTION} all versions of b have no usable wheels and a depends on b, we can conclude that a cannot be used.\n  And because you require a, we can conclude that your requirements are unsatisfiable.\n\nhint: Wheels are required for `b` because", "no_wheel", "b has no wheel"),
        ("error: Request failed\n  cause: Failed to fetch: https://me:secret@x.example/six/\n  cause: Connection refused", "unreachable", "Connection refused"),
        ("error: Failed to write\n  cause: No space left on device (os error 28)", "disk_full", "full"),
        ("error: something else", "failed", "something else"),
    ],
)  # fmt: skip
def test_a_complaint_becomes_one_line(said: str, reason: str, words: str) -> None:
    failure = understood(said, earlier=[])
    assert failure.reason == reason
    assert words in failure.words
    assert "\n" not in failure.words


def test_no_password_and_no_control_character_is_in_a_line() -> None:
    line = in_one_line("see\nhttps://me:secret@index.example/x\x1b[31m")
    assert "secret" not in line
    assert line.isprintable()
