"""Where packages come from: what the host has told pip and uv, in the words of uv.

uv does not read pip's configuration, and on many machines that is the only one there is.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Mapping

from kernelbox.installs.policy import Policy

# What decides where uv looks and how it gets there. Nothing that decides what it does.
_PASSED = (
    "UV_INDEX",
    "UV_DEFAULT_INDEX",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_NO_INDEX",
    "UV_OFFLINE",
    "UV_CONFIG_FILE",
    "UV_NO_CONFIG",
    "UV_HTTP",
    "UV_REQUEST_TIMEOUT",
    "UV_INSECURE_HOST",
    "UV_KEYRING_PROVIDER",
    "UV_NATIVE_TLS",
    "UV_SYSTEM_CERTS",
    "UV_EXCLUDE_NEWER",
    "UV_CONCURRENT",
)
_WAYS = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSL_CLIENT_CERT", "NETRC")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_PLAIN = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS")
_PIP_SECTIONS = ("global", "download", "install")


def host_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What of somebody's environment says where packages come from; no other variable of theirs
    gets near the installer."""
    names = {*_WAYS, *_PLAIN, *_PROXIES, *(name.lower() for name in _PROXIES)}
    return {
        name: value
        for name, value in environ.items()
        if name in names or name.startswith(("PIP_", *_PASSED))
    }


def environment_for_uv(environ: Mapping[str, str], policy: Policy) -> dict[str, str]:
    """The environment that uv gets, but for its folders."""
    kept = {name: value for name, value in environ.items() if not name.startswith("PIP_")}
    pip = pip_settings(environ)
    if policy.indexes:
        kept = {name: value for name, value in kept.items() if not _chooses_index(name)}
        first, *more = policy.indexes
        kept |= {"UV_DEFAULT_INDEX": first, "UV_NO_CONFIG": "1"}
        if more:
            kept["UV_INDEX"] = " ".join(more)
    elif not any(map(_chooses_index, kept)):
        kept |= _indexes_of(pip)
    if "cert" in pip:
        kept.setdefault("SSL_CERT_FILE", pip["cert"])
    if "proxy" in pip and not any(name.upper() in _PROXIES for name in kept):
        kept |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), pip["proxy"])
    if "trusted-host" in pip:
        kept.setdefault("UV_INSECURE_HOST", " ".join(pip["trusted-host"].split()))
    return kept


def _chooses_index(name: str) -> bool:
    chosen = ("UV_INDEX", "UV_DEFAULT_INDEX", "UV_EXTRA", "UV_FIND", "UV_NO_INDEX", "UV_CONFIG")
    return name.startswith(chosen)


def _indexes_of(pip: Mapping[str, str]) -> dict[str, str]:
    found = {}
    if _is_on(pip.get("no-index", "")):
        found["UV_NO_INDEX"] = "1"
    elif "index-url" in pip:
        found["UV_DEFAULT_INDEX"] = pip["index-url"]
    if extra := pip.get("extra-index-url", "").split():
        found["UV_INDEX"] = " ".join(extra)
        # As pip does: the best of all of them. uv's own way, the first that has the name, would not
        # find what a small index next to the default one has in an older version.
        found["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    if links := pip.get("find-links", "").split():
        found["UV_FIND_LINKS"] = ",".join(links)
    return found


def pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """What ``pip config list`` would say, by the rules of pip: later files beat earlier ones, and
    variables beat files."""
    found: dict[str, str] = {}
    for path in _pip_files(environ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, OSError, UnicodeDecodeError):
            continue
        for section in _PIP_SECTIONS:
            if parser.has_section(section):
                found |= {key.replace("_", "-"): value for key, value in parser.items(section)}
    for name, value in environ.items():
        if name.startswith("PIP_") and value:
            found[name.removeprefix("PIP_").lower().replace("_", "-")] = value
    return found


def _pip_files(environ: Mapping[str, str]) -> list[str]:
    home = environ.get("HOME") or os.path.expanduser("~")
    only = environ.get("PIP_CONFIG_FILE")
    if only == os.devnull:
        return []
    folders = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    own = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    files = [os.path.join(folder, "pip", "pip.conf") for folder in folders if folder]
    files += ["/etc/pip.conf", os.path.join(home, ".pip", "pip.conf")]
    files += [os.path.join(own, "pip", "pip.conf"), os.path.join(sys.prefix, "pip.conf")]
    return [*files, only] if only else files


def _is_on(text: str) -> bool:
    return text.strip().lower() in ("1", "true", "yes", "on", "y", "t")
