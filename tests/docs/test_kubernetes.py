"""The Kubernetes examples: the API's fields and types, ports and volumes that exist, health checks, and commands that are ours."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from verfedgnn.cli.main import app

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "examples" / "kubernetes").glob("*.yaml"))
_PROBE = {
    "httpGet": {"path": str, "port": str}, "failureThreshold": int, "periodSeconds": int,
}  # fmt: skip
_POD = {
    "restartPolicy": str,
    "securityContext": {
        "runAsNonRoot": bool, "runAsUser": int, "fsGroup": int, "fsGroupChangePolicy": str,
    },
    "containers": [
        {
            "name": str, "image": str, "args": [str], "ports": [{"name": str, "containerPort": int}],
            "startupProbe": _PROBE, "livenessProbe": _PROBE, "readinessProbe": _PROBE,
            "securityContext": {
                "allowPrivilegeEscalation": bool, "readOnlyRootFilesystem": bool, "capabilities": {"drop": [str]},
            },
            "volumeMounts": [{"name": str, "mountPath": str, "readOnly": bool}],
        }
    ],
    "volumes": [
        {"name": str, "persistentVolumeClaim": {"claimName": str, "readOnly": bool}, "emptyDir": {}},
    ],
}  # fmt: skip
_TEMPLATE = {
    "metadata": {
        "labels": {"app": str}, "annotations": {"prometheus.io/scrape": str, "prometheus.io/port": str},
    },
    "spec": _POD,
}  # fmt: skip
SCHEMA: dict[str, Any] = {
    "v1 PersistentVolumeClaim": {"accessModes": [str], "resources": {"requests": {"storage": str}}},
    "v1 Service": {
        "type": str, "selector": {"app": str}, "ports": [{"name": str, "port": int, "targetPort": int}],
    },
    "batch/v1 CronJob": {
        "schedule": str, "concurrencyPolicy": str, "startingDeadlineSeconds": int,
        "jobTemplate": {
            "spec": {
                "backoffLimit": int,
                "podFailurePolicy": {"rules": [{"action": str, "onExitCodes": {"operator": str, "values": [int]}}]},
                "template": _TEMPLATE,
            }
        },
    },
    "apps/v1 Deployment": {
        "replicas": int, "selector": {"matchLabels": {"app": str}}, "template": _TEMPLATE,
    },
}  # fmt: skip
"""Fields of the Kubernetes API that the examples may use, with their types."""


def objects() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in FILES:
        for each in yaml.safe_load_all(file.read_text()):
            yield file.stem, each


def pods() -> list[dict[str, Any]]:
    specs = [each["spec"] for _, each in objects()]
    specs = [spec["jobTemplate"]["spec"] if "jobTemplate" in spec else spec for spec in specs]
    return [spec["template"]["spec"] for spec in specs if "template" in spec]


def check(value: Any, schema: Any, place: str) -> None:
    if isinstance(schema, dict):
        assert isinstance(value, dict), place
        assert set(value) <= set(schema), place
        for name, inner in value.items():
            check(inner, schema[name], f"{place}.{name}")
    elif isinstance(schema, list):
        assert isinstance(value, list), place
        for inner in value:
            check(inner, schema[0], place)
    else:
        assert type(value) is schema, place


def test_there_is_one_manifest_each_for_coordinator_and_party() -> None:
    assert [file.stem for file in FILES] == ["coordinator", "party"]


def test_objects_have_the_fields_and_types_of_the_api() -> None:
    for file, each in objects():
        kind = f"{each['apiVersion']} {each['kind']}"
        assert set(each) == {"apiVersion", "kind", "metadata", "spec"}
        assert re.fullmatch(r"[a-z0-9-]{1,52}", each["metadata"]["name"])
        check(each["spec"], SCHEMA[kind], f"{file}: {kind}")


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_reads_every_field() -> None:
    """What kubectl decodes into its own types and writes again still has every field of the example."""

    def covers(found: Any, wanted: Any) -> bool:
        if isinstance(wanted, dict):
            return all(name in found and covers(found[name], value) for name, value in wanted.items())
        if isinstance(wanted, list):
            return len(found) == len(wanted) and all(map(covers, found, wanted))
        return bool(found == wanted)

    words = ["kubectl", "set", "env", "--local", "-o", "json", "-f", "-", "ANY=thing"]
    for file, each in objects():
        done = subprocess.run(words, input=yaml.safe_dump(each), capture_output=True, text=True)
        if each["kind"] in ("CronJob", "Deployment"):
            assert covers(json.loads(done.stdout), each), f"{file}: {each['kind']}"
        else:  # decoded, and without containers
            assert "does not have a pod template" in done.stderr, done.stderr


def test_probes_volumes_and_selectors_lead_somewhere() -> None:
    for pod in pods():
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            if not container["image"].startswith("verfedgnn"):
                assert mounted <= volumes
                continue
            ports = {port["name"] for port in container["ports"]}
            assert container["startupProbe"]["httpGet"]["path"] == "/healthz"
            assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                assert container[probe]["httpGet"]["port"] in ports
            assert mounted == volumes
    names = {each["metadata"]["name"] for _, each in objects()}
    service = next(each for _, each in objects() if each["kind"] == "Service")
    assert service["spec"]["selector"]["app"] in names


def test_the_image_has_what_the_manifests_and_compose_start() -> None:
    extras = re.search(r"^ARG EXTRAS=(\S+)", (ROOT / "Dockerfile").read_text(), re.M)
    assert extras is not None
    started = {words[words.index("--") + 1] if "--" in words else words[0] for words in commands()}
    needed = {"serve": "serve", "party": "federation", "coordinator": "federation"}
    assert started == set(needed)
    assert {needed[name] for name in started} <= set(extras[1].split(","))


def commands() -> list[list[str]]:
    containers = [container for pod in pods() for container in pod["containers"]]
    return [each["args"] for each in containers if each["image"].startswith("verfedgnn")]


def test_the_metrics_of_nights_are_where_the_exporter_looks() -> None:
    nights = [words for words in commands() if words[0] == "night"]
    assert {Path(words[words.index("--textfile") + 1]).parent for words in nights} == {Path("/data/metrics")}
    exporters = [
        container for pod in pods() for container in pod["containers"] if container["name"] == "metrics"
    ]
    assert len(exporters) == len(nights) == 2
    for each in exporters:
        assert "--collector.textfile.directory=/data/metrics" in each["args"]


def test_their_options_are_ours() -> None:
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for words in commands():
        inner = words[words.index("--") + 1 :] if "--" in words else words
        options = {option for parameter in known[inner[0]].params for option in parameter.opts}
        assert {word for word in inner if word.startswith("--")} <= options
