"""Jupyter's own conformance suite, run against our kernelspec."""

from __future__ import annotations

import jupyter_kernel_test
import pytest

pytestmark = [
    pytest.mark.jupyter,
    pytest.mark.slow,
    pytest.mark.usefixtures("kernelspec_home"),
]


class TestConformance(jupyter_kernel_test.KernelTests):
    kernel_name = "kernelbox"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples = (
        {"text": "zi", "matches": {"zip"}},
        {"text": "import tempfil", "matches": {"tempfile"}},
    )
    complete_code_samples = ("1", "print('hello, world')", "def f(x):\n  return x*2\n\n\n")
    incomplete_code_samples = ("print('''hello", "def f(x):\n  x*2")
    invalid_code_samples = ("import = 7q",)
    code_page_something = "print?"
    code_generate_error = "raise ValueError('as asked')"
    code_execute_result = (
        {"code": "1+2+3", "result": "6"},
        {"code": "[n*n for n in range(1, 4)]", "result": "[1, 4, 9]"},
        {"code": "'h' + 'i'", "result": "'hi'"},
    )
    code_display_data = (
        {"code": "from IPython.display import HTML, display; display(HTML('<b>test</b>'))",
         "mime": "text/html"},
        {"code": "from IPython.display import Math, display; display(Math('\\\\frac{1}{2}'))",
         "mime": "text/latex"},
    )  # fmt: skip
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "range", "search")
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"


class TestWelcome(jupyter_kernel_test.IopubWelcomeTests):
    kernel_name = "kernelbox"
    support_iopub_welcome = True
