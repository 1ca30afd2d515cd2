"""The programs in examples/ do what they say. (The demo is played by scripts/demo.)"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_tree_search_finds_something_better_and_draws_its_tree(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "tree_search.py"), "tree.svg"],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    sessions, failed = map(int, re.findall(r"^(\d+) sessions, (\d+) ideas", done.stdout)[0])
    first, best = map(float, re.findall(r"as it came: (\S+); best: (\S+) by", done.stdout)[0])
    assert sessions == 31
    assert failed > 0  # ideas that crash are part of the story
    assert best > first + 0.5
    tree = ElementTree.parse(tmp_path / "tree.svg").getroot()
    assert len(tree.findall("{http://www.w3.org/2000/svg}path")) == sessions - 1
