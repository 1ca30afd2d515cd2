# Sourced: sets $python to an interpreter that is new enough. PYTHON, when set, is the only candidate.
# And $suffix, which keeps environments of different interpreters apart.
# shellcheck shell=sh disable=SC2034
python=
for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "KernelBox needs Python 3.11 or newer; tried: ${PYTHON:-python3 python3.13 python3.12 python3.11 python}." >&2
    echo "Name one that is installed: PYTHON=/path/to/python3.12 $0" >&2
    exit 1
fi
# An interpreter chosen by hand gets environments of its own, so that going back and forth costs nothing.
suffix=
if [ -n "${PYTHON:-}" ]; then
    suffix=-$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
fi
