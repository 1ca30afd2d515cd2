"""What code has around it: the variables of its environment, and what a home hides."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelbox.walls.profiles import Profile


def secret_names(environ: Mapping[str, str]) -> set[str]:
    """The names in an environment that look like secrets, or whose values plainly are some."""
    return {name for name, value in environ.items() if _is_secret(name, value)}


def _is_secret(name: str, value: str) -> bool:
    return _sounds_secret(name) or _secret_values().search(value) is not None


# Whole words of a name (a name is split at anything but letters and digits).
_SECRET_WORDS = frozenset((
    "AUTH", "BEARER", "COOKIE", "COOKIES", "CRED", "CREDS", "DSN", "HEADERS", "JWT", "KEYFILE",
    "KEYRING", "KEYTAB", "NETRC", "PASS", "PASSFILE", "PASSWDFILE", "PAT", "PEM", "PGPASS",
    "PRIVATE", "PWD", "SALT", "SIGNATURE",
))  # fmt: skip
# A word ends so: GITHUBTOKEN does; TOKENIZERS_PARALLELISM, which is harmless, does not.
_SECRET_ENDS = ("KEY", "KEYS", "PASSFILE", "TOKEN", "TOKENS")
_SECRET_PARTS = ("SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "APIKEY", "OAUTH")
_SECRET_STARTS = (
    "AWS_", "AZURE_", "ARM_CLIENT_", "GCP_", "GCLOUD_", "GOOGLE_APPLICATION_", "GPG_",
    "OP_SESSION_", "SSH_", "VAULT_",
)  # fmt: skip
_SECRET_NAMES = frozenset(("KUBECONFIG", "XAUTHORITY", "MYSQL_PWD", "DATABASE_URL", "REDIS_URL"))
_NO_SECRETS = frozenset(("PWD", "OLDPWD"))
_WORD = re.compile(r"[A-Z0-9]+")


@functools.cache
def _secret_values() -> re.Pattern[str]:
    # Compiling this takes longer than the rest of the module does to load.
    return re.compile(
        r"""
        ://[^/\s:@]*:[^/\s@]+@                    # a password in an address
        | -----BEGIN\ [A-Z ]*PRIVATE\ KEY
        | \b(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-|[sr]k_live_|sk-|hf_|pypi-|npm_)[\w-]{16}
        | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b
        | \beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.        # a JSON web token
        """,
        re.VERBOSE,
    )


def _sounds_secret(name: str) -> bool:
    name = name.upper()
    if name in _NO_SECRETS:
        return False
    if name in _SECRET_NAMES or name.startswith(_SECRET_STARTS):
        return True
    if any(part in name for part in _SECRET_PARTS):
        return True
    return any(word in _SECRET_WORDS or word.endswith(_SECRET_ENDS) for word in _WORD.findall(name))


# They lead to sockets and proxies of the host, which are out of reach behind walls.
_OF_THE_HOST = frozenset(
    ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST", "TMUX", "TMP", "TEMP")
)
_PROXIES = frozenset(("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY"))
_USER = "sandbox"


def environment_for(
    profile: Profile,
    caller: Mapping[str, str],
    *,
    home: str,
    path: str,
    given: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The variables that code in such a sandbox has; ``given`` ones it has whatever it is.

    ``home`` and ``path`` are HOME and PATH as they are behind the walls; without walls the
    caller's own are right.
    """
    made: dict[str, str] = {}
    for name, value in caller.items():
        if profile.environment == "minimal" and not _is_plain(name):
            continue
        if profile.environment != "caller" and _is_secret(name, value):
            continue
        if profile.walled and (name in _OF_THE_HOST or name.upper() in _PROXIES):
            continue
        made[name] = value
    if profile.environment == "minimal":
        made = {"LANG": "C.UTF-8", "TERM": "dumb", **made}
        made |= {"USER": _USER, "LOGNAME": _USER, "SHELL": "/bin/bash"}
    if profile.walled or profile.environment == "minimal":
        made |= {"HOME": home, "PATH": path, "TMPDIR": "/tmp"}
    return made | dict(given or {})


def _is_plain(name: str) -> bool:
    return name in ("LANG", "TZ", "TERM") or name.startswith("LC_")


def credential_folders() -> tuple[str, ...]:
    """What is masked in a home that a sandbox sees: files and folders, relative to it."""
    return _CREDENTIALS


_CREDENTIALS = (
    ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".netrc", ".git-credentials",
    ".env", ".pypirc", ".npmrc", ".yarnrc.yml", ".pgpass", ".my.cnf", ".mylogin.cnf",
    ".vault-token", ".boto", ".s3cfg", ".terraform.d", ".terraformrc", ".password-store",
    ".pki", ".putty",
    ".kaggle", ".databrickscfg", ".snowflake", ".snowsql", ".bitcoin", ".ethereum", ".oci",
    ".ansible", ".cargo/credentials", ".cargo/credentials.toml", ".gem/credentials",
    ".m2/settings.xml", ".gradle/gradle.properties", ".nuget", ".composer/auth.json",
    ".jupyter", ".ipython/profile_default/security", ".local/share/jupyter/runtime",
    ".local/share/keyrings", ".local/share/kwalletd", ".local/share/uv/credentials",
    ".local/share/containers", ".cache/huggingface/token",
    ".cache/huggingface/stored_tokens", ".huggingface", ".pip", ".config/pip", ".fly", ".claude",
    ".claude.json", ".codex", ".gemini", ".mozilla", ".thunderbird", ".config/gcloud",
    ".config/gh", ".config/glab-cli", ".config/hub", ".config/git/credentials",
    ".config/google-chrome", ".config/chromium", ".config/BraveSoftware",
    ".config/microsoft-edge", ".config/containers", ".config/op", ".config/Bitwarden",
    ".config/pypoetry/auth.toml", ".config/rclone", ".config/sops", ".config/age",
    ".config/doctl", ".config/heroku", ".config/wandb", ".config/anthropic",
    ".config/github-copilot", ".config/Code/User/globalStorage", ".config/kernelbox",
    ".kernelbox", ".Xauthority", ".ICEauthority",
    # What was typed and pasted stays there for a long time.
    ".bash_history", ".zsh_history", ".python_history", ".psql_history", ".mysql_history",
    ".zhistory", ".sqlite_history", ".node_repl_history", ".local/share/fish/fish_history",
    ".ipython/profile_default/history.sqlite",
)  # fmt: skip
