"""What deploy/ has for Kubernetes and SkyPilot: known fields, a cluster, an end for each code."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kerasdist.cluster.launchers import read_membership
from tests.deploy.platforms import pod_templates, processes_of, read
from tests.test_preflight import free_addresses

ROOT = Path(__file__).parents[2]
MANIFESTS = sorted((ROOT / "deploy").glob("*.yaml"))
STARTING = [path for path in MANIFESTS if path.stem != "networkpolicy"]
JOB = ROOT / "deploy/job.yaml"
PYTHON = ROOT / ".venvs/deploy/bin/python"
SOME_FIELDS = r"\b(replicas|completions|numNodes|podSelector|cpus):"
FINAL, WORTH_A_RETRY = (1, 2, 126, 127), (137, 138, 143)


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_published_models_know_each_field(tmp_path):
    if not PYTHON.exists():
        pytest.fail("The models are not installed: `make .venvs/deploy/installed`.")
    wrong = []
    for path in MANIFESTS:
        text = re.sub(SOME_FIELDS, r"\1z:", path.read_text())
        wrong.append(tmp_path / path.name)
        wrong[-1].write_text(text)
    done = subprocess.run(
        [PYTHON, Path(__file__).with_name("schemas.py"), *MANIFESTS, *wrong],
        capture_output=True,
        text=True,
    )

    lines = done.stdout.splitlines()
    assert done.returncode in (0, 1), done.stderr
    assert [line for line in lines if not line.startswith(str(tmp_path))] == []
    found = {line.partition(": ")[0] for line in lines}
    assert found == {str(path) for path in wrong}, "A wrong field was not found."


# An agent; each leaves a file.
TASK = """
import json, os
config = json.loads(os.environ["TF_CONFIG"])
open(f"{config['task']['index']} of {len(config['cluster']['worker'])}", "w").close()
"""


@pytest.mark.processes
def test_the_launches_of_a_job_meet(tmp_path):
    processes = processes_of(JOB)
    (here,) = free_addresses(1)
    agents = []
    for process in processes:
        python, *command, program = process.command
        assert (python, program) == ("python", "train.py")
        # As the file says of a fixed number: else the first would begin alone.
        command[command.index("--workers=1:4")] = "--workers=4"
        port = f"--rendezvous={processes[0].host}:29400"
        command[command.index(port)] = f"--rendezvous={here}"
        agents.append(
            subprocess.Popen(
                [sys.executable, *command[:-1], sys.executable, "-c", TASK],
                cwd=tmp_path,
                env={**os.environ, **process.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        )
    codes = [agent.wait(60) for agent in agents]

    assert codes == [0] * 4
    assert sorted(path.name for path in tmp_path.glob("* of *")) == [
        f"{index} of 4" for index in range(4)
    ]


@pytest.mark.processes
@pytest.mark.parametrize(
    "path", [path for path in STARTING if path != JOB], ids=lambda path: path.stem
)
def test_the_processes_make_a_cluster(path):
    processes = processes_of(path)
    assert all("KERASDIST_SECRET" in each.environ for each in processes) == (
        path.stem != "skypilot"
    )
    (here,) = free_addresses(1)
    environments = [dict(each.environ) for each in processes]
    for environ in environments:
        membership = read_membership(environ)
        if membership is not None:  # They meet at the first one, which is here now.
            assert membership.address.rpartition(":")[0] == processes[0].host
            environ["KERASDIST_ADDRESS"] = here
    done = subprocess.run(
        [sys.executable, "-m", "tests.deploy.meeting"],
        input=json.dumps(environments),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
    assert not done.stderr  # Nothing to warn of.
    found = json.loads(done.stdout)
    assert [each.get("task", each) for each in found] == [
        f"worker {index}" for index in range(len(processes))
    ]
    assert len(processes) > 1
    assert all(each["jobs"] == found[0]["jobs"] for each in found)
    assert len(set(found[0]["jobs"]["worker"])) == len(processes)


@pytest.mark.parametrize("path", STARTING, ids=lambda path: path.stem)
def test_only_workers_reach_workers(path):
    [policy] = read(ROOT / "deploy/networkpolicy.yaml")
    selected = policy["spec"]["podSelector"]["matchLabels"]

    workers, monitoring = policy["spec"]["ingress"]
    assert workers["from"] == [{"podSelector": {"matchLabels": selected}}]
    assert monitoring["ports"] == [{"port": 9090}]
    for template in pod_templates(read(path)):
        assert selected.items() <= template["metadata"]["labels"].items()
        assert template["metadata"]["labels"]["sidecar.istio.io/inject"] == "false"
        assert template["spec"]["terminationGracePeriodSeconds"] > 30


def outcome_of_job(job: dict, code: int) -> tuple[str, str]:
    """Returns why a Job fails when a pod ends with this code, and what it says; "" if it does not.

    That is when no pod has failed before.
    """
    for rule in job["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes", {"operator": "In", "values": []})
        assert codes["operator"] == "In" and sorted(set(codes["values"])) == codes["values"]
        if code in codes["values"]:
            # As Kubernetes' Job controller writes it.
            said = f"Container c for pod n/p failed with exit code {code} matching FailJob rule at"
            return ("PodFailurePolicy", said) if rule["action"] == "FailJob" else ("", "")
    return ("BackoffLimitExceeded", "") if job["backoffLimit"] == 0 else ("", "")


def outcome_of_jobset(spec: dict, code: int) -> str:
    """Returns the action of a JobSet when a pod ends with this code."""
    [job] = spec["replicatedJobs"]
    reason, said = outcome_of_job(job["template"]["spec"], code)
    for rule in spec["failurePolicy"]["rules"]:
        patterns = rule.get("onJobFailureMessagePatterns", [""])
        if reason in rule["onJobFailureReasons"] and any(re.search(p, said) for p in patterns):
            return rule["action"]
    raise AssertionError("No rule matches.")


def test_a_job_fails_by_the_program_alone():
    [_, job] = read(JOB)

    assert {outcome_of_job(job["spec"], code)[0] for code in FINAL} == {"PodFailurePolicy"}
    assert {outcome_of_job(job["spec"], code)[0] for code in WORTH_A_RETRY} == {""}


@pytest.mark.parametrize("name", ["jobset", "trainjob-plain"])
def test_a_jobset_starts_again_what_is_worth_a_retry(name):
    spec = read(ROOT / f"deploy/{name}.yaml")[0]["spec"]
    spec = spec.get("template", {}).get("spec", spec)
    again = "RestartJobSet"

    actions = {code: outcome_of_jobset(spec, code) for code in (*FINAL, *WORTH_A_RETRY)}
    assert actions == {
        **dict.fromkeys(FINAL, "FailJobSet"),
        **{137: again, 138: again, 143: f"{again}AndIgnoreMaxRestarts"},
    }


def test_skypilot_starts_again_without_a_limit_only_what_was_stopped():
    [task] = read(ROOT / "deploy/skypilot.yaml")

    recovery = task["resources"]["job_recovery"]
    assert recovery["recover_on_exit_codes"] == [143]
