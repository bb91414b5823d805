"""The alert rules of the examples, evaluated by Prometheus' own checker."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

RULES = Path(__file__).parents[1] / "examples" / "monitoring" / "alerts.yaml"
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (Debian's package prometheus) is not installed"
)


def find_rules() -> list[dict[str, Any]]:
    return list(yaml.safe_load(RULES.read_text())["groups"][0]["rules"])


def check_alerts(folder: Path, metrics: str, minutes: int, firing: set[str]) -> None:
    """Check which alerts fire after metrics in Prometheus' text format have stayed as they are. The clock starts at 0."""
    samples = [line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#")]
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": f"{value}x{minutes}"} for name, value in samples],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{rule["alert"]}", alertstate="firing"}}) or vector(0)',
                "eval_time": f"{minutes}m",
                "exp_samples": [{"labels": "{}", "value": int(rule["alert"] in firing)}],
            }
            for rule in find_rules()
        ],
    }
    test = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [case]}
    (folder / "test.yaml").write_text(yaml.safe_dump(test))
    done = subprocess.run(
        ["promtool", "test", "rules", str(folder / "test.yaml")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
