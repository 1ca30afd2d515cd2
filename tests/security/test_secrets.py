"""Promise: the value of a secret that is bound to a domain goes to that domain, and is nowhere in the
sandbox: not in its environment, its files, its memory, nor in what KernelBox writes down.

Whole sandboxes with their gates, and an Internet of our own for them to reach.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("cryptography", reason="secrets need the package 'cryptography'")

import internet as network
from internet import BOUND, OTHER, Internet

VALUE = "the-real-value-c0ffee4711"

# Looks for the value in all memory there is, without ever having it whole itself.
SCAN = r"""
def scan(parts):
    first, second = (bytes.fromhex(part) for part in parts)
    found = []
    with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:
        for line in maps:
            if 'r' not in line.split()[1] or '[v' in line: continue
            low, high = (int(end, 16) for end in line.split()[0].split('-'))
            for start in range(low, high, 1 << 22):
                try:
                    memory.seek(start)
                    piece = memory.read(min(1 << 22, high - start))
                except OSError: break
                place = piece.find(first)
                while place >= 0:
                    if piece[place + len(first):place + len(first) + len(second)] == second:
                        found.append(line.strip())
                    place = piece.find(first, place + 1)
                del piece
    return found
def has(path, parts):
    first, second = (bytes.fromhex(part) for part in parts)
    try:
        with open(path, 'rb') as file: data = file.read(1 << 20)
    except OSError: return False
    return any(rest.startswith(second) for rest in data.split(first)[1:])
"""
ASK = """
import os, subprocess, urllib.request, urllib.error
def ask(url, value=None, **more):
    value = value or 'Bearer ' + os.environ['API_TOKEN']
    wanted = urllib.request.Request(url, headers={'Authorization': value, **more})
    try:
        return urllib.request.urlopen(wanted, timeout=20).status
    except urllib.error.HTTPError as error:
        return error.code
"""


UIDS = {"root": 0, "an ordinary user": 1234}


@pytest.fixture(scope="module", params=UIDS)
def net(request: pytest.FixtureRequest) -> Iterator[Internet]:
    if words := network.obstacle():
        pytest.skip(words)
    uid = UIDS[request.param]
    if network.python_of(uid) is None:
        pytest.skip("there is no Python here that an ordinary user could run")
    variables = {"API_TOKEN": VALUE, "OTHER_NAME": f"and {VALUE} inside", "PLAIN": "x"}
    with network.internet(uid, **variables) as made:
        made.run(
            "(folder / 'work').mkdir()\n"
            "box.get_or_create('moderate', profile=Profile(name='mine', secrets=[bound],\n"
            "                  allow=('bound.example', 'other.example')))\n"
            "box.get_or_create('permissive', cwd=str(folder / 'work'), profile=Profile(name='all', environment='filtered',\n"
            "                  cwd='rw', home='ro', secrets=[bound]))".replace(
                "[bound]", f"[Secret('API_TOKEN', '{BOUND}')]"
            )
        )
        yield made


@pytest.fixture(params=["moderate", "permissive"])
def kernel(net: Internet, request: pytest.FixtureRequest) -> str:
    name: str = request.param
    net.execute(name, SCAN + ASK)
    return name


def halves(word: str) -> str:
    middle = len(word) // 2
    return repr([part.encode().hex() for part in (word[:middle], word[middle:])])


def last(net: Internet) -> str:
    headers: dict[str, str] = net.heard()[-1]["headers"]
    return headers["authorization"]


def placeholder(net: Internet, kernel: str) -> str:
    return str(net.execute(kernel, "os.environ['API_TOKEN']")["value"]).strip("'")


def test_the_bound_domain_gets_the_value(net: Internet, kernel: str) -> None:
    assert net.execute(kernel, f"ask('https://{BOUND}/')")["value"] == "200"
    assert last(net) == f"Bearer {VALUE}"


def test_curl_and_bash_just_work(net: Internet, kernel: str) -> None:
    code = f'curl -sS -H "Authorization: token $API_TOKEN" https://{BOUND}/'
    answer = net.execute(kernel, f"subprocess.run({code!r}, shell=True, capture_output=True)")
    assert "stdout=b'{}'" in answer["value"], answer
    assert last(net) == f"token {VALUE}"


@pytest.mark.parametrize("url", [f"https://{OTHER}/", f"http://{BOUND}/", f"http://{OTHER}/"])
def test_anybody_else_gets_the_placeholder(net: Internet, kernel: str, url: str) -> None:
    assert net.execute(kernel, f"ask('{url}')")["value"] == "200"
    assert last(net) == f"Bearer {placeholder(net, kernel)}"


def test_a_redirect_to_another_domain_takes_no_value_along(net: Internet, kernel: str) -> None:
    before = len(net.heard())
    url = f"https://{BOUND}/redirect?https://{OTHER}/"
    assert net.execute(kernel, f"ask('{url}')")["value"] == "200"
    first, second = net.heard()[before:]
    assert first["headers"]["authorization"] == f"Bearer {VALUE}"
    assert VALUE not in str(second)


def test_the_environment_has_a_placeholder(net: Internet, kernel: str) -> None:
    stand = placeholder(net, kernel)
    assert stand.startswith("kbx-secret-")
    assert VALUE not in net.execute(kernel, "dict(os.environ)")["value"]
    seen = net.execute(kernel, "print(subprocess.run('env', capture_output=True).stdout.decode())")
    assert VALUE not in seen["output"]
    assert f"API_TOKEN={stand}" in seen["output"]


def test_no_process_and_no_file_of_the_sandbox_has_the_value(net: Internet, kernel: str) -> None:
    found = net.execute(
        kernel,
        "hits = []\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    hits += [f'/proc/{pid}/{name}' for name in ('environ', 'cmdline', 'status')\n"
        "             if has(f'/proc/{pid}/{name}', @parts@)]\n"
        "for top in ('/etc', '/tmp', '/workspace', '/home', '/run', '/dev/shm', '/var', '.'):\n"
        "    for folder, _, files in os.walk(top):\n"
        "        hits += [file for file in files if has(os.path.join(folder, file), @parts@)]\n"
        "print(hits)".replace("@parts@", halves(VALUE)),
    )
    assert found["output"] == "[]\n", found


def test_no_memory_of_the_sandbox_has_the_value(net: Internet, kernel: str) -> None:
    net.execute(kernel, f"ask('https://{BOUND}/')")
    found = net.execute(kernel, f"print(scan({halves(VALUE)}))")
    assert found["output"] == "[]\n", found
    stand = placeholder(net, kernel)
    assert net.execute(kernel, f"print(bool(scan({halves(stand)})))")["output"] == "True\n"


def test_no_key_of_its_authority_is_in_the_sandbox(net: Internet, kernel: str) -> None:
    text = net.execute(kernel, "print(open('/etc/kernelbox/certificates.pem').read())")["output"]
    assert "BEGIN CERTIFICATE" in text
    assert "PRIVATE" not in text
    key = "-----BEGIN PRIVATE KEY-----\nM"
    found = net.execute(kernel, f"print(scan({halves(key)}))")["output"]
    # Python's own ssl and cryptography may hold the words, but not followed by a key.
    assert found == "[]\n", found


def test_the_gate_is_out_of_reach_and_cannot_be_read(net: Internet, kernel: str) -> None:
    names = net.execute(
        kernel,
        "print([open(f'/proc/{p}/comm').read() for p in os.listdir('/proc') if p.isdigit()])",
    )
    assert "kb-gate" not in names["output"]
    # By its uid it is root's nobody, or the caller's own; what is in /proc of it is root's alone.
    found = net.run(
        "stub = [p['pid'] for p in box.status(kernel)['processes'] if p['role'] == 'stub'][0]\n"
        "result = []\n"
        "for pid in open(f'/proc/{stub}/task/{stub}/children').read().split():\n"
        "    if open(f'/proc/{pid}/comm').read() != 'kb-gate\\n': continue\n"
        "    uid = int(open(f'/proc/{pid}/status').read().partition('Uid:')[2].split()[0])\n"
        "    owner = os.stat(f'/proc/{pid}/environ').st_uid\n"
        "    try: readable = bool(open(f'/proc/{pid}/mem', 'rb')) and os.getuid() != 0\n"
        "    except PermissionError: readable = False\n"
        "    result.append([os.getuid(), uid, owner, readable])",
        kernel=kernel,
    )
    [(caller, uid, owner, readable)] = found
    assert (uid, owner, readable) == (caller or 65534, 0, False)


def test_copies_and_restarts_have_the_placeholder_and_the_gate(net: Internet, kernel: str) -> None:
    copy = f"copy-of-{kernel}"
    net.run("box.branch(kernel, copy)", kernel=kernel, copy=copy)
    try:
        assert net.execute(copy, f"ask('https://{BOUND}/')")["value"] == "200"
        assert last(net) == f"Bearer {VALUE}"
        net.run("box.restart(copy)", copy=copy)
        net.execute(copy, SCAN + ASK)
        assert net.execute(copy, f"ask('https://{BOUND}/')")["value"] == "200"
        assert last(net) == f"Bearer {VALUE}"
        assert net.execute(copy, f"print(scan({halves(VALUE)}))")["output"] == "[]\n"
    finally:
        net.run("box.destroy(copy)", copy=copy)


def test_nothing_that_is_written_down_or_told_has_the_value(net: Internet, kernel: str) -> None:
    net.run("box.save(kernel, str(folder / 'saved.kbx'))", kernel=kernel)
    told = net.run(
        "import kernelbox.keeper.home as homes\n"
        "place = homes.locate(box.settings)\n"
        "hits = []\n"
        "for top in {str(folder), place.runtime_dir, place.rundir}:\n"
        "    for where, _, files in os.walk(top):\n"
        "        for file in files:\n"
        "            path = os.path.join(where, file)\n"
        "            if os.path.isfile(path) and not path.endswith('/heard'):\n"
        "                hits += [path] * (value.encode() in open(path, 'rb').read())\n"
        "said = [repr(box.status(kernel)), repr(box.list_kernels()),\n"
        "        str(Profile(secrets=[Secret('API_TOKEN', 'bound.example')]).to_wire())]\n"
        "result = hits + [text for text in said if value in text]",
        kernel=kernel,
        value=VALUE,
    )
    assert told == []


def test_a_secret_without_a_value_is_refused_in_words(net: Internet) -> None:
    for made, words in (
        ("Secret('NOT_SET', 'bound.example')", "the variable NOT_SET is not set"),
        ("Secret('X', 'bound.example', '/no/such/file')", "/no/such/file"),
        ("Secret('X', 'bound.example', '/dev/zero')", "one line of"),
    ):
        with pytest.raises(AssertionError, match=words):
            net.run(f"box.get_or_create('none', profile=Profile(secrets=[{made}]))")
    assert "none" not in net.run("result = [k.name for k in box.list_kernels()]")


def test_a_file_that_the_sandbox_would_see_is_refused(net: Internet) -> None:
    net.run("(folder / 'work' / 'token').write_text('in-the-project')")
    profile = "Profile(cwd='ro', secrets=[Secret('X', 'bound.example', str(folder / where))])"
    make = f"box.get_or_create('seen', cwd=str(folder / 'work'), profile={profile})"
    net.run("os.symlink(folder / 'work' / 'token', folder / 'link')")
    try:
        for where in ("work/token", "link"):
            with pytest.raises(AssertionError, match="which the sandbox sees"):
                net.run(make, where=where)
    finally:
        net.run("os.unlink(folder / 'link')\n(folder / 'work' / 'token').unlink()")
    assert "seen" not in net.run("result = [k.name for k in box.list_kernels()]")


def test_a_secret_from_a_file_is_one_too(net: Internet) -> None:
    net.run(
        "(folder / 'token').write_text(' from-a-file-123\\n')\n"
        "box.get_or_create('filed', profile={'security': {'profile': 'restrictive'},\n"
        "    'network': {'mode': 'on', 'allow': ['bound.example']},\n"
        "    'secrets': [{'name': 'FILED', 'domain': 'bound.example', 'file': 'token'}]})"
    )
    try:
        net.execute("filed", ASK)
        told = net.execute("filed", f"ask('https://{BOUND}/', os.environ['FILED'])")
        assert (told["value"], last(net)) == ("200", "from-a-file-123")
    finally:
        net.run("box.destroy('filed')")


def test_it_is_so_in_gvisor_too(net: Internet) -> None:
    from kernelbox.walls import gvisor

    if obstacle := gvisor.obstacle():
        pytest.skip(f"no sandbox of gVisor can be had here: {obstacle}")
    name = "in-gvisor"
    net.run(
        f"box.get_or_create({name!r}, profile=Profile(name='g', driver='gvisor',\n"
        f"    allow=({BOUND!r}, {OTHER!r}), secrets=[Secret('API_TOKEN', {BOUND!r})]))"
    )
    net.execute(name, SCAN + ASK)
    assert net.execute(name, f"ask('https://{BOUND}/')")["value"] == "200"
    assert last(net) == f"Bearer {VALUE}"
    answer = net.execute(name, f"ask('https://{OTHER}/')")
    assert answer["value"] == "200", answer
    assert last(net) == f"Bearer {placeholder(net, name)}"
    assert net.execute(name, f"print(scan({halves(VALUE)}))")["output"] == "[]\n"
