"""The network of the tasks, and whose their files are."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import kerasdist
from kerasdist.processes.guard import ISOLATED, Guard
from tests.launcher.programs import logs_of, python
from tests.network import isolated_only

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


TALK = """
host, port = config["cluster"]["worker"][0].split(":")
if task == "worker 0":
    with socket.create_server((host, int(port))) as server:
        server.settimeout(20)
        server.accept()[0].sendall(b"hello")
else:
    while True:
        try:
            connection = socket.create_connection((host, int(port)), timeout=20)
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    print(connection.recv(5))
print(*[name for _, name in socket.if_nameindex()])
"""


@isolated_only
def test_tasks_reach_each_other_in_a_network_of_their_own(capfd):
    result = kerasdist.launch(python(TALK))

    assert logs_of(result) == {"worker 0": "lo\n", "worker 1": "b'hello'\nlo\n"}
    printed = capfd.readouterr()
    assert "isolated" in printed.out
    assert printed.err == ""


@isolated_only
def test_files_of_isolated_tasks_belong_to_the_user():
    kerasdist.launch(python("open(task, 'w').close()"))

    assert {Path(f"worker {index}").stat().st_uid for index in range(2)} == {os.geteuid()}


@isolated_only
def test_a_port_for_the_state_of_isolated_tasks_is_told_to_be_out_of_reach(monkeypatch, capfd):
    monkeypatch.setenv("KERASDIST_STATUS_PORT", "9090")
    kerasdist.launch(python("pass"), num_workers=1)

    (warning,) = capfd.readouterr().err.splitlines()
    assert warning.startswith("warning: KERASDIST_STATUS_PORT is set, but nobody outside")
    assert "--network=host, or KERASDIST_STATUS_FILE" in warning


@isolated_only
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_users_without_privileges_get_a_network_of_their_own():
    # As after `setuid`, but files of root may be read until then.
    program = """
        import ctypes, fcntl, os, socket, struct
        from kerasdist.processes import guard
        libc = ctypes.CDLL(None)
        os.setgroups([]), os.setgid(65534), os.setuid(65534)
        libc.prctl(4, 1)  # PR_SET_DUMPABLE: without it, /proc/self stays root's.
        print(guard._isolate(), os.getuid(), *[name for _, name in socket.if_nameindex()])
    """
    printed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], check=True, capture_output=True, text=True
    )

    assert printed.stdout.split() == [ISOLATED, "65534", "lo"]


def test_network_of_the_host_when_asked_for(capfd):
    result = kerasdist.launch(
        python("print(os.readlink('/proc/self/ns/net'))"), network="host", num_workers=1
    )

    assert logs_of(result)["worker 0"].strip() == os.readlink("/proc/self/ns/net")
    [row] = re.findall("  network .*", capfd.readouterr().out)
    assert re.search(r": port \d+ open, without a password, on .*127\.0\.0\.1", row)


def test_open_ports_are_named_where_the_network_cannot_be_isolated(monkeypatch, capsys):
    reason = "no network namespace: not permitted"
    monkeypatch.setattr(
        Guard, "network", property(lambda _: reason, lambda *_: None), raising=False
    )

    result = kerasdist.launch(python(TALK))

    assert result.exit_code == 0
    printed = capsys.readouterr()
    ports = re.findall(r"127\.0\.0\.1:(\d+)", printed.out)
    assert printed.err.count("\n") == 1
    assert "not permitted). TensorFlow's servers listen on every interface" in printed.err
    assert f"on ports {', '.join(ports)}:" in printed.err
