"""KernelBox: a named Python that never forgets, for agents.

::

    from kernelbox import destroy, execute, get_or_create

    kernel = get_or_create("agent")  # made if it is not there; found again if it is
    execute(kernel, "x = [1, 2, 3]")
    print(execute(kernel, "sum(x)").return_value)  # 6: the kernel remembers x
    destroy(kernel)

The functions work on the kernels of one home: ``$KERNELBOX_HOME``, or ``.kernelbox/`` in the
current folder. :class:`Box` and :class:`AsyncBox` have the same functions as methods.
``help(kernelbox.execute)`` and ``help(kernelbox.ExecutionResult)`` are good places to go on.
"""

# The public names are imported on first use, so that `import kernelbox` costs next to nothing.

__version__ = "0.2.0"

TYPE_CHECKING = False  # type checkers know better; importing typing would double our import time
if TYPE_CHECKING:
    from kernelbox.api import (
        attach as attach,
        branch as branch,
        cancel as cancel,
        checkpoint as checkpoint,
        checkpoints as checkpoints,
        complete as complete,
        destroy as destroy,
        drop_checkpoint as drop_checkpoint,
        events as events,
        execute as execute,
        execute_many as execute_many,
        execute_with_retry as execute_with_retry,
        get_or_create as get_or_create,
        install as install,
        interrupt as interrupt,
        list_kernels as list_kernels,
        load as load,
        output as output,
        restart as restart,
        rewind as rewind,
        save as save,
        search_output as search_output,
        status as status,
        stream as stream,
        undo as undo,
        wipe as wipe,
    )
    from kernelbox.async_box import AsyncBox as AsyncBox
    from kernelbox.box import Box as Box
    from kernelbox.client.meaning import (
        AsyncRepair as AsyncRepair,
        KernelLike as KernelLike,
        OnInput as OnInput,
        ProfileLike as ProfileLike,
        Repair as Repair,
    )
    from kernelbox.config import Settings as Settings
    from kernelbox.errors import (
        BadInput as BadInput,
        BoxError as BoxError,
        CheckpointNotFound as CheckpointNotFound,
        EpochMismatch as EpochMismatch,
        ExecutionNotFound as ExecutionNotFound,
        InstallFailed as InstallFailed,
        KeeperUnavailable as KeeperUnavailable,
        KernelLost as KernelLost,
        KernelNotFound as KernelNotFound,
        KeyReused as KeyReused,
        StartupFailed as StartupFailed,
        Unsupported as Unsupported,
    )
    from kernelbox.result import (
        AttemptSnapshot as AttemptSnapshot,
        Checkpoint as Checkpoint,
        ErrorInfo as ErrorInfo,
        Event as Event,
        ExecutionResult as ExecutionResult,
        Image as Image,
        InstalledPackage as InstalledPackage,
        InstallReport as InstallReport,
        KernelRecord as KernelRecord,
        OutputItem as OutputItem,
        OutputMatch as OutputMatch,
        OutputPage as OutputPage,
        SaveReport as SaveReport,
    )
    from kernelbox.walls.bindings import Secret as Secret
    from kernelbox.walls.profiles import Mount as Mount, Profile as Profile

# Where each public name lives. One table serves the lazy import, ``__all__`` and ``dir()``.
_HOMES = {
    "api": (
        "attach branch cancel checkpoint checkpoints complete destroy drop_checkpoint events"
        " execute execute_many execute_with_retry get_or_create install interrupt list_kernels load"
        " output restart rewind save search_output status stream undo wipe"
    ),
    "async_box": "AsyncBox",
    "box": "Box",
    "client.meaning": "AsyncRepair KernelLike OnInput ProfileLike Repair",
    "config": "Settings",
    "errors": (
        "BadInput BoxError CheckpointNotFound EpochMismatch ExecutionNotFound InstallFailed"
        " KeeperUnavailable KernelLost KernelNotFound KeyReused StartupFailed Unsupported"
    ),
    "result": (
        "AttemptSnapshot Checkpoint ErrorInfo Event ExecutionResult Image InstallReport"
        " InstalledPackage KernelRecord OutputItem OutputMatch OutputPage SaveReport"
    ),
    "walls.bindings": "Secret",
    "walls.profiles": "Mount Profile",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

# Hidden from type checkers: they would take any misspelt name for a public one, and cannot read
# an ``__all__`` that is computed. What they need is above.
if not TYPE_CHECKING:
    __all__ = ["__version__", *sorted(_HOME_OF)]  # noqa: PLE0604

    def __getattr__(name: str) -> object:
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module 'kernelbox' has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(f"kernelbox.{home}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return list(__all__)
