"""The tasks of a launch, their addresses, and what each finds in its environment."""

import random
import re
import resource
import signal
import socket
from pathlib import Path

import pytest

import kerasdist
from kerasdist.cluster import Cluster, Task
from kerasdist.processes import task_environment
from kerasdist.processes.settings import Settings
from tests.launcher.programs import logs_of, python

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, ["worker 0", "worker 1"]),
        ({"num_workers": 1, "num_ps": 2}, ["chief 0", "worker 0", "ps 0", "ps 1"]),
        (
            {"num_workers": 1, "chief": True, "evaluator": True},
            ["chief 0", "worker 0", "evaluator 0"],
        ),
    ],
)
def test_every_task_finds_itself_in_tf_config(settings, names):
    source = f"""
        print(os.environ["TF_CONFIG"])
        open(task, "w").close()
        for name in {names}:
            wait_for(name)
        task[:2] == "ps" and time.sleep(600)
    """
    result = kerasdist.launch(python(source), **settings)

    assert [str(ended.task) for ended in result.tasks] == names
    clusters = [Cluster.from_env({"TF_CONFIG": log}) for log in logs_of(result).values()]
    assert [str(cluster.task) for cluster in clusters] == names
    assert all(cluster.jobs == clusters[0].jobs for cluster in clusters)
    assert "evaluator" not in clusters[0].jobs


def test_task_is_told_about_the_launch(monkeypatch):
    monkeypatch.setenv("OF_THE_USER", "kept")
    names = ["NUM_CLONES", "NUM_TASKS", "RESTART_COUNT", "RUN_ID"]
    program = python(f"print(*[os.environ['KERASDIST_' + name] for name in {names}])")
    program[-1] += "\nprint(os.environ['OF_THE_USER'], os.environ['PYTHONUNBUFFERED'])"

    result = kerasdist.launch(program, num_clones=3, num_workers=2)

    first, second = logs_of(result).values()
    assert re.fullmatch(r"3 2 0 [\d-]+-\w{8}\nkept 1\n", first)
    assert first == second


@pytest.mark.parametrize(
    ("environ", "run_id"),
    [
        ({}, "own"),
        ({"KERASDIST_RUN_ID": " "}, "own"),
        ({"KERASDIST_RUN_ID": "job 7"}, "job 7"),
        # It is that of the launch whose task has started this one.
        ({"KERASDIST_RUN_ID": "other", "KERASDIST_LAUNCH_FOLDER": "folder"}, "own"),
    ],
)
def test_a_launch_that_a_scheduler_starts_again_is_the_run_that_it_names(environ, run_id):
    assert task_environment.run_id_of("own", environ) == run_id


@pytest.mark.parametrize(("num_backup_workers", "told"), [(None, ""), (0, "0"), (1, "1")])
def test_task_is_told_of_backup_workers_whatever_the_environment_of_the_launch_says(
    num_backup_workers, told, monkeypatch
):
    monkeypatch.setenv("KERASDIST_NUM_BACKUP_WORKERS", "7")
    settings = Settings(num_workers=2, num_ps=1, num_backup_workers=num_backup_workers)

    found = task_environment.task_environment(
        Task("chief", 0), {}, settings, run_id="run", num_restarts=0, note=Path("folder/note")
    )

    assert found["KERASDIST_NUM_BACKUP_WORKERS"] == told


def test_addresses_are_free_ports_of_this_machine_and_leave_the_seed_alone():
    random.seed(0)
    first = task_environment.free_addresses(50)
    random.seed(0)
    second = task_environment.free_addresses(50)

    assert first != second
    assert len(set(second)) == 50
    assert all(re.fullmatch(r"127\.0\.0\.1:[12]\d{4}", address) for address in second)
    random.seed(0)
    assert random.random() == pytest.approx(0.8444218515250481)


def test_there_are_as_many_addresses_as_ports_that_are_free(monkeypatch):
    with socket.socket() as held:
        held.bind(("", 0))
        port = held.getsockname()[1]
        monkeypatch.setattr(task_environment, "_PORTS", range(port, port + 1))
        with pytest.raises(ValueError, match=rf"3 tasks need .* {port} to {port}, .* has 0\. Stop"):
            task_environment.free_addresses(3)


def test_many_addresses_need_no_open_files():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, limits[1]))
    try:
        assert len(set(task_environment.free_addresses(2000))) == 2000
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_more_tasks_than_this_process_may_open_files_for_are_refused(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (100, 100))

    with pytest.raises(ValueError, match=r"80 tasks need 130 open files, .* 100\. Allow more"):
        kerasdist.launch(["true"], num_workers=80)


def test_what_a_shell_ignores_in_the_background_is_not_ignored_by_tasks():
    handlers = [signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGQUIT)]
    try:
        source = "print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGQUIT))"
        result = kerasdist.launch(python(source), num_workers=1)
    finally:
        signal.signal(signal.SIGINT, handlers[0])
        signal.signal(signal.SIGQUIT, handlers[1])

    told = logs_of(result)["worker 0"]
    assert "default_int_handler" in told
    assert told.split()[-1] in ("0", "Handlers.SIG_DFL")


def test_tasks_may_have_as_many_connections_as_the_system_allows():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        source = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
        result = kerasdist.launch(python(source), num_workers=1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert int(logs_of(result)["worker 0"]) == min(hard % (1 << 63), 65536)
