"""Every command: what it is for, what it takes, and examples. One table serves parsing, help and
completion."""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kernelbox.cli import options
from kernelbox.cli.exits import MEANINGS
from kernelbox.cli.parser import Parser

Means = Literal["nothing", "a kernel", "a new kernel", "perhaps a kernel"]


def _nothing(_: Parser) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Command:
    """One command. ``handler`` is ``module:function`` of this package, imported when it is run."""

    name: str
    summary: str
    handler: str
    means: Means = "nothing"
    arguments: Callable[[Parser], None] = _nothing
    examples: tuple[str, ...] = ()
    more: str = ""
    words: str = ""
    """What the words that belong to no option are, if the command takes any."""
    human: bool = True
    group: str = "Kernels"

    def parser(self) -> Parser:
        epilog = "".join(f"  {example}\n" for example in self.examples)
        parser = Parser(
            self.name,
            usage=f"kernelbox {self.name}{_USAGE[self.means]} [options]"
            + (f" [{self.words}]" if self.words else ""),
            description=f"{self.summary[0].upper()}{self.summary[1:]}."
            + (f"\n\n{self.more}" if self.more else ""),
            epilog=f"examples:\n{epilog}" if epilog else None,
        )
        if self.means != "nothing":
            parser.add_argument("--name", metavar="NAME", help="the kernel of that name")
        if self.means in ("a kernel", "perhaps a kernel"):
            parser.add_argument("--id", metavar="ID", help="the kernel with that id")
        self.arguments(parser)
        if self.human:
            parser.add_argument(
                "--human", action="store_true", help="for people: colours and tables, no JSON"
            )
        parser.add_argument("words", nargs="*", metavar=self.words or "WORDS", help=SUPPRESS)
        return parser


_USAGE: dict[Means, str] = {
    "nothing": "",
    "a kernel": " (--name NAME | --id ID)",
    "a new kernel": " --name NAME",
    "perhaps a kernel": " [--name NAME | --id ID]",
}


_ALL = (
    Command(
        "create",
        "make a kernel, or find the one of that name",
        "kernels:create",
        "a kernel",
        options.create,
        (
            "kernelbox create --name demo",
            "kernelbox create --name demo --cwd /data --env MODE=test --tag owner=ada",
            "kernelbox create --name copy --template demo",
            "kernelbox create --name careful --profile restrictive",
        ),
        "Prints the kernel's record. A kernel that is there is left as it is.",
    ),
    Command(
        "list",
        "show the kernels of this home",
        "kernels:listing",
        arguments=options.listing,
        examples=("kernelbox list", "kernelbox list --refresh --human"),
        more='Prints {"kernels": […]}, oldest first.',
    ),
    Command(
        "status",
        "say what a kernel is doing now",
        "kernels:status",
        "a kernel",
        examples=("kernelbox status --name demo",),
        more='Prints {"alive": …, "kernel": …} and what runs, what waits, and the processes.',
    ),
    Command(
        "exec",
        "run code in a kernel, which is made if it is not there",
        "execution:execute",
        "a kernel",
        options.execute,
        (
            "kernelbox exec --name demo 'x = 41; x + 1'",
            "kernelbox exec --name demo --bash 'ls | wc -l'",
            "kernelbox exec --name demo --timeout 5 -f script.py",
            "echo 'print(x)' | kernelbox exec --name demo",
            "kernelbox exec --name demo --stream --human -f train.py",
        ),
        "The code is the argument, a file (-f), or standard input (no argument, or -). Prints the\n"
        "result as one JSON line and exits 1 if the code failed. Ctrl-C interrupts the code;\n"
        "a second one leaves at once.",
        words="CODE",
    ),
    Command(
        "interrupt",
        "interrupt what runs in a kernel",
        "kernels:interrupt",
        "a kernel",
        options.interrupt,
        ("kernelbox interrupt --name demo",),
        'Prints {"interrupted": …}. Variables are kept, and cells that wait go on.',
    ),
    Command(
        "restart",
        "give a kernel a fresh interpreter under the same name and id",
        "kernels:restart",
        "a kernel",
        examples=("kernelbox restart --name demo",),
        more="Variables are gone and the epoch goes up by one. Prints the record.",
    ),
    Command(
        "install",
        "give a kernel packages, importable at once",
        "installing:install",
        "a kernel",
        options.install,
        (
            "kernelbox install --name demo 'pandas==2.*'",
            "kernelbox install --name demo -U six iniconfig",
        ),
        "The host downloads them, also for a kernel without a network; they go with the kernel.\n"
        "Prints what was installed. KERNELBOX_INSTALL_… says what may be.",
        words="PACKAGE...",
    ),
    Command(
        "destroy",
        "end a kernel and all its processes",
        "kernels:destroy",
        "a kernel",
        examples=("kernelbox destroy --name demo",),
        more='Prints {"destroyed": true}, or false if there was none.',
    ),
    Command(
        "wipe",
        "destroy every kernel of this home",
        "kernels:wipe",
        examples=("kernelbox wipe",),
        more='Prints {"destroyed": […]}, the ids.',
    ),
    Command(
        "branch",
        "copy a live kernel, variables and all, under new names",
        "timetravel:branch",
        "a kernel",
        options.branch,
        (
            "kernelbox branch --name demo --to what-if",
            "kernelbox branch --name demo --to a --to b --reseed",
        ),
        'Prints {"kernels": […]}; all of them are made, or none.',
        group="Going back and forth",
    ),
    Command(
        "checkpoint",
        "remember a kernel as it is now",
        "timetravel:checkpoint",
        "a kernel",
        options.checkpoint,
        (
            "kernelbox checkpoint --name demo --label clean",
            "kernelbox checkpoint --name demo --drop clean",
        ),
        'Prints {"checkpoint_id": …}. It takes milliseconds, whatever the size of the session.',
        group="Going back and forth",
    ),
    Command(
        "checkpoints",
        "show what a kernel can be rewound to",
        "timetravel:checkpoints",
        "a kernel",
        examples=("kernelbox checkpoints --name demo --human",),
        more='Prints {"checkpoints": […]}, oldest first.',
        group="Going back and forth",
    ),
    Command(
        "rewind",
        "bring a kernel back to a checkpoint",
        "timetravel:rewind",
        "a kernel",
        options.rewind,
        ("kernelbox rewind --name demo --to clean",),
        "Prints the record. Files and everything else outside the kernel stay as they are.",
        group="Going back and forth",
    ),
    Command(
        "undo",
        "go back to before the last cells",
        "timetravel:undo",
        "a kernel",
        options.undo,
        (
            "KERNELBOX_UNDO=5 kernelbox exec --name demo 'x = 1'",
            "kernelbox undo --name demo -n 1",
        ),
        "KERNELBOX_UNDO must have been set when those cells were run. Prints the record.",
        group="Going back and forth",
    ),
    Command(
        "save",
        "write a kernel's session to a file",
        "timetravel:save",
        "a kernel",
        options.save,
        ("kernelbox save --name demo -f demo.session",),
        "Prints what was saved, and what could not be, with the reason.",
        group="Going back and forth",
    ),
    Command(
        "load",
        "make a kernel of a saved session",
        "timetravel:load",
        "a new kernel",
        options.load,
        ("kernelbox load --name again -f demo.session",),
        "Prints the record. A file that another home saved is refused unless you --trust it.",
        group="Going back and forth",
    ),
    Command(
        "repl",
        "work in a kernel at a prompt",
        "repl:repl",
        "a kernel",
        examples=("kernelbox repl --name demo",),
        more="Tab completes, Ctrl-C interrupts, Ctrl-D leaves; the kernel stays. :help says more.",
        human=False,
        group="At the terminal",
    ),
    Command(
        "top",
        "watch the kernels: memory, processor, what runs",
        "top:top",
        arguments=options.top,
        examples=("kernelbox top", "kernelbox top --once | jq .kernels"),
        more="q leaves. On a pipe it prints one look as JSON.",
        group="At the terminal",
    ),
    Command(
        "logs",
        "read the keeper's log, or all that an execution printed",
        "logs:logs",
        "perhaps a kernel",
        options.logs,
        (
            "kernelbox logs --human",
            "kernelbox logs --name demo --human",
            "kernelbox logs --name demo --execution ID --search 'loss='",
            "kernelbox logs --name demo --execution ID --start -2000",
        ),
        group="Looking inside",
    ),
    Command(
        "audit",
        "read the audit log: lives of kernels, executions, denials",
        "auditing:audit",
        "perhaps a kernel",
        options.audit,
        (
            "kernelbox audit --human",
            "kernelbox audit --name demo --event execution --lines 20",
            "kernelbox audit --event denial | jq .events",
        ),
        more="KERNELBOX_AUDIT_LOG says where it is written; without it, nothing is.",
        group="Looking inside",
    ),
    Command(
        "profile",
        "explain the walls that a kernel can have",
        "profiles:profile",
        examples=(
            "kernelbox profile show --human",
            "kernelbox profile show restrictive --human",
            "kernelbox profile show ./kernelbox.toml",
        ),
        words="[show] PROFILE",
        group="Looking inside",
    ),
    Command(
        "config",
        "show every setting, its value and where it came from",
        "settings:config",
        examples=("kernelbox config --human", "kernelbox config | jq .settings.home"),
        group="Looking inside",
    ),
    Command(
        "doctor",
        "say what works on this machine, and what to do about the rest",
        "doctor:doctor",
        arguments=options.doctor,
        examples=("kernelbox doctor --human",),
        more="Exits 1 if something that KernelBox needs does not work.",
        group="Looking inside",
    ),
    Command(
        "serve",
        "offer the kernels over HTTP",
        "serving:serve",
        arguments=options.serve,
        examples=(
            "kernelbox serve --port 8080",
            "kernelbox serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem",
        ),
        more="On another address than this machine's own, requests need a token:\n"
        "KERNELBOX_API_TOKEN, --tokens, or one that is made and printed.",
        human=False,
        group="Doors",
    ),
    Command(
        "completion",
        "print a script that teaches your shell to complete our commands",
        "completion:script",
        examples=(
            'eval "$(kernelbox completion bash)"',
            "kernelbox completion zsh > ~/.zfunc/_kernelbox",
            "kernelbox completion fish > ~/.config/fish/completions/kernelbox.fish",
        ),
        words="bash | zsh | fish",
        human=False,
        group="Doors",
    ),
)
COMMANDS: dict[str, Command] = {command.name: command for command in _ALL}


def short_help() -> str:
    """What ``kernelbox`` alone says."""
    lines = [
        "usage: kernelbox COMMAND [options]",
        "",
        "A Python that never forgets. Kernels keep their variables between calls; every command",
        "prints JSON, or with --human what people like to read.",
        "",
        "  kernelbox exec --name demo 'x = [1, 2, 3]'     # the kernel is made if need be",
        "  kernelbox exec --name demo 'sum(x)'            # and remembers x",
    ]
    group = ""
    for command in COMMANDS.values():
        if command.group != group:
            group = command.group
            lines += ["", f"{group}:"]
        lines.append(f"  {command.name:<12} {command.summary}")
    lines += [
        "",
        "kernelbox COMMAND --help    what it takes, with examples",
        "kernelbox --help            this, and the exit codes",
        "kernelbox --version",
    ]
    return "\n".join(lines) + "\n"


def long_help() -> str:
    """What ``kernelbox --help`` says."""
    codes = "".join(f"  {code:>3}  {meaning}\n" for code, meaning in MEANINGS.items())
    return (
        f"{short_help()}\n"
        "Kernels belong to a home: the folder KERNELBOX_HOME, or .kernelbox/ in this folder.\n"
        "A failure of ours is one JSON object on standard error: error, message, hint.\n\n"
        f"exit codes:\n{codes}"
    )
