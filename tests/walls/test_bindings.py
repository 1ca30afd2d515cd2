"""What a profile says of secrets: checked, printable, and without any value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernelbox.errors import BadInput, Unsupported
from kernelbox.walls import authority, profilefiles
from kernelbox.walls.bindings import Secret, hide, placeholders, secrets_from, values_of
from kernelbox.walls.drivers import cannot_enforce
from kernelbox.walls.profiles import PROFILES, Profile, resolve

TOKEN = Secret("API_TOKEN", "api.example.com")


def test_a_profile_with_secrets_travels_and_comes_back_the_same() -> None:
    profile = Profile(secrets=(TOKEN, Secret("API_TOKEN", "b.example:8443"), Secret("K", "c.org", "/k")),
                      allow=("*", "b.example:8443")).check()  # fmt: skip
    assert Profile.from_wire(json.loads(json.dumps(profile.to_wire()))) == profile
    assert "secret API_TOKEN for api.example.com" in str(profile)
    assert "have the secret API_TOKEN sent to api.example.com" in profile.explain()
    assert "see the value of API_TOKEN" in profile.explain()
    assert "secrets" in profile.differences(PROFILES["moderate"])


def test_a_file_binds_secrets(tmp_path: Path) -> None:
    place = tmp_path / "kernelbox.toml"
    place.write_text(
        '[network]\nmode = "on"\nallow = ["api.example.com"]\n'
        '[[secrets]]\nname = "API_TOKEN"\ndomain = "API.example.com"\n'
        '[[secrets]]\nname = "KEY"\ndomain = "api.example.com"\nfile = "keys/one"\n'
    )
    assert profilefiles.read(place).secrets == (
        TOKEN,
        Secret("KEY", "api.example.com", str(tmp_path / "keys/one")),
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"secrets": "x"}, "takes a list"),
        ({"secrets": ["sk-very-secret"]}, "as a table"),
        ({"secrets": [{"name": "A"}]}, "say its domain"),
        ({"secrets": [{"domain": "a.org"}]}, "say its name"),
        ({"secrets": [{"name": "A", "domain": "a.org", "value": "x"}]}, "never holds values"),
        ({"secrets": [{"name": "A", "domian": "a.org"}]}, "did you mean 'domain'"),
        ({"secrets": [{"name": "A-B", "domain": "a.org"}]}, "a variable's"),
        ({"secrets": [{"name": "PATH", "domain": "a.org"}]}, "its own meaning"),
        ({"secrets": [{"name": "https_proxy", "domain": "a.org"}]}, "its own meaning"),
        ({"secrets": [{"name": "SSL_CERT_FILE", "domain": "a.org"}]}, "its own meaning"),
        ({"secrets": [{"name": "A", "domain": "*.a.org"}]}, "one domain"),
        ({"secrets": [{"name": "A", "domain": "*"}]}, "one domain"),
        ({"secrets": [{"name": "A", "domain": "127.0.0.1"}]}, "is an address"),
        ({"secrets": [{"name": "A", "domain": "localhost"}]}, "cannot be allowed"),
        ({"secrets": [{"name": "A", "domain": "https://a.org"}]}, "is written like"),
        ({"secrets": [{"name": "A", "domain": "a.org", "file": ""}]}, "a path from /"),
        ({"secrets": [{"name": "A", "domain": "a.org"}] * 2}, "there twice"),
        ({"secrets": [{"name": "A", "domain": "a.org"}, {"name": "A", "domain": "b.org", "file": "/x"}]}, "two values"),
        ({"secrets": [{"name": "A", "domain": "a.org"}], "network": "off"}, "network is 'off'"),
        ({"secrets": [{"name": "A", "domain": "a.org"}], "allow": ["b.org"]}, "allow does not name"),
        ({"secrets": [{"name": "A", "domain": "a.org"}], "allow": ["*.a.org"]}, "allow does not name"),
        ({"secrets": [{"name": "A", "domain": "a.org"}], "allow": ["a.org:80"]}, "allow does not name"),
        ({"secrets": [{"name": "A", "domain": "a.org:8443"}], "allow": ["*"]}, "allow does not name"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_in_words(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        Profile.from_wire(wrong)
    assert "sk-very-secret" not in str(caught.value)


def test_a_door_for_strangers_binds_none() -> None:
    wanted = {"secrets": [TOKEN.to_wire()], "allow": ["*"]}
    assert resolve(wanted).secrets == (TOKEN,)
    with pytest.raises(BadInput, match="cannot be bound from here"):
        resolve(wanted, files=False)


def test_a_value_is_that_of_a_variable_or_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("in-a-file \n")
    bound = secrets_from(
        [TOKEN.to_wire(), {"name": "KEY", "domain": "a.org", "file": str(tmp_path / "key")}]
    )
    assert values_of(bound, {"API_TOKEN": "in-a-variable", "KEY": "unused"}) == {
        "API_TOKEN": "in-a-variable",
        "KEY": "in-a-file",
    }


@pytest.mark.parametrize(
    "value", ["", "abc", "two\nlines", "a\x00b-c", "k\r\nX-Evil: 1", "ü" * 9, "x" * 9000]
)
def test_a_value_that_no_header_carries_is_refused_and_not_shown(value: str) -> None:
    with pytest.raises(BadInput, match="nothing that a header could carry") as caught:
        values_of([TOKEN], {"API_TOKEN": value})
    assert not value or value not in str(caught.value)


def test_placeholders_are_nobodys_guess() -> None:
    first, second = placeholders(["A", "B", "A"]), placeholders(["A", "B"])
    assert first.keys() == {"A", "B"}
    assert len({*first.values(), *second.values()}) == 4


def test_an_environment_has_placeholders_wherever_the_value_was() -> None:
    values, stand = {"A": "secret", "B": "secret-longer"}, {"A": "<a>", "B": "<b>"}
    environ = {"A": "secret", "URL": "https://x:secret@y", "MORE": "secret-longer", "Z": "z"}
    made = hide(environ, values, stand)
    assert made == {"A": "<a>", "B": "<b>", "URL": "https://x:<a>@y", "MORE": "<b>", "Z": "z"}


def test_without_cryptography_it_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cryptography.x509", None)
    with pytest.raises(Unsupported, match=r"install kernelbox\[secrets\]"):
        authority.certificate_for(["a.org"])
    assert "kernelbox[secrets]" in cannot_enforce(Profile(secrets=(TOKEN,)))


def test_a_list_of_authorities_that_is_none_is_refused_in_words(tmp_path: Path) -> None:
    for name in ("missing", "empty"):
        (tmp_path / "empty").touch()
        with pytest.raises(BadInput, match="which servers to trust"):
            authority.trusted_by_the_host({"SSL_CERT_FILE": str(tmp_path / name)})
