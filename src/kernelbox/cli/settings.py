"""``kernelbox config``: every setting, its value, and where that came from."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kernelbox.cli import exits
from kernelbox.cli.printing import say
from kernelbox.config import VARIABLES, Settings
from kernelbox.config.variables import Variable
from kernelbox.errors import BadInput

_HIDDEN = "(set, and not shown)"
_OF_THE_HOME = ("registry_path", "runtime_dir")


def config(options: Namespace) -> int:
    facts = settings_facts(os.environ)
    if options.human:
        from kernelbox.cli.human import show_settings

        show_settings(facts)
    else:
        say({"settings": facts})
    broken = [name for name, fact in facts.items() if "problem" in fact]
    return exits.BAD_INPUT if broken else exits.DONE


def settings_facts(environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Each setting by its field. One that cannot be used is said to be, and does not hide the
    others: this is where people look when something is wrong."""
    facts = _facts(VARIABLES, Settings.from_environment, environ)
    try:
        from kernelbox.server.settings import VARIABLES as OF_THE_SERVICE, ServerSettings
    except ImportError:
        return facts  # the service is not installed, so nothing sets it
    return facts | _facts(OF_THE_SERVICE, ServerSettings.from_environment, environ)


def _facts(
    variables: Iterable[Variable],
    read: Callable[[Mapping[str, str]], Any],
    environ: Mapping[str, str],
) -> dict[str, dict[str, Any]]:
    good = dict(environ)
    problems: dict[str, str] = {}
    for variable in variables:
        try:
            if text := environ.get(variable.name):
                variable.parse(text)
        except BadInput as error:
            problems[variable.field] = error.message
            del good[variable.name]
    settings = read(good)
    facts = {}
    for variable in variables:
        value = getattr(settings, variable.field)
        fact: dict[str, Any] = {
            "value": _HIDDEN if value and variable.secret else value,
            "default": variable.default or None,
            "source": source_of(variable, good),
            "variable": variable.name,
            "help": variable.help,
        }
        if variable.field in problems:
            fact["problem"] = problems[variable.field]
        facts[variable.field] = fact
    return facts


def source_of(variable: Variable, environ: Mapping[str, str]) -> str:
    """Who decided a setting."""
    if variable.field in _OF_THE_HOME and not environ.get(variable.name):
        return "KERNELBOX_HOME" if environ.get("KERNELBOX_HOME") else "default"
    return "environment" if environ.get(variable.name) else "default"
