"""The kernelspec: what tells Jupyter how to start a kernel of ours.

``python -m kernelbox.kernelspec install [--user | --sys-prefix | --prefix P] [--name N]``
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence

from kernelbox.errors import BadInput

NAME = "kernelbox"
_NAMES = re.compile(r"[A-Za-z0-9._-]+")


def kernelspec(name: str = NAME) -> dict[str, object]:
    """The content of ``kernel.json`` for the Python that runs this."""
    return {
        # -P: a notebook's folder may hold a file called like one of our modules.
        "argv": [sys.executable, "-P", "-m", "kernelbox.launcher", "-f", "{connection_file}"],
        "display_name": "Python 3 (KernelBox)" if name == NAME else f"Python 3 ({name})",
        "language": "python",
        "interrupt_mode": "message",
        "metadata": {"debugger": False, "supported_features": []},
    }


def install(user: bool = False, prefix: str | None = None, *, name: str = NAME) -> str:
    """Write the kernelspec where Jupyter looks for it, and return the folder.

    For this user, or below ``prefix`` (``sys.prefix``: the environment that runs this), or, with
    neither, for the whole machine.
    """
    if user and prefix is not None:
        raise BadInput("a kernelspec is installed for the user or below a prefix, not both")
    if not _NAMES.fullmatch(name) or name.strip(".") == "":
        raise BadInput(
            f"a kernelspec's name is made of letters, digits, '.', '_' and '-': {name!r} is not"
        )
    if user:
        data = user_data_dir()
    elif prefix is not None:
        data = os.path.join(os.path.abspath(os.path.expanduser(prefix)), "share", "jupyter")
    else:
        data = system_data_dir()
    folder = os.path.join(data, "kernels", name)
    path = os.path.join(folder, "kernel.json")
    try:
        os.makedirs(folder, exist_ok=True)
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(kernelspec(name), file, indent=1)
            file.write("\n")
        os.replace(f"{path}.new", path)
    except OSError as error:
        raise BadInput(
            f"the kernelspec cannot be written to {folder!r}: {error.strerror}. "
            "Install it for yourself with --user, or into your environment with --sys-prefix.",
            path=folder,
        ) from None
    return folder


def user_data_dir(environ: Mapping[str, str] | None = None, *, platform: str = sys.platform) -> str:
    """Jupyter's data folder of this user."""
    environ = os.environ if environ is None else environ
    if chosen := environ.get("JUPYTER_DATA_DIR"):
        return chosen
    home = os.path.realpath(os.path.expanduser("~"))
    if platform == "darwin":
        return os.path.join(home, "Library", "Jupyter")
    if platform == "win32":
        roaming = environ.get("APPDATA")
        return (
            os.path.join(roaming, "jupyter") if roaming else os.path.join(home, ".jupyter", "data")
        )
    base = environ.get("XDG_DATA_HOME") or os.path.join(home, ".local", "share")
    return os.path.join(base, "jupyter")


def system_data_dir(
    environ: Mapping[str, str] | None = None, *, platform: str = sys.platform
) -> str:
    """Jupyter's data folder for all users."""
    environ = os.environ if environ is None else environ
    if platform == "win32":
        return os.path.join(environ.get("PROGRAMDATA") or r"C:\ProgramData", "jupyter")
    return "/usr/local/share/jupyter"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernelbox.kernelspec")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("install", help="let Jupyter start kernels of ours")
    place = command.add_mutually_exclusive_group()
    place.add_argument("--user", action="store_true", help="for this user")
    place.add_argument("--sys-prefix", action="store_true", help="into this Python's environment")
    place.add_argument("--prefix", help="below this folder")
    command.add_argument("--name", default=NAME, help="what Jupyter calls it")
    options = parser.parse_args(argv)
    prefix = sys.prefix if options.sys_prefix else options.prefix
    try:
        folder = install(options.user, prefix, name=options.name)
    except BadInput as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
