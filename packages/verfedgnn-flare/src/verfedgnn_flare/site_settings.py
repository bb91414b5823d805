"""What one site keeps to itself: `local/verfedgnn.toml` in its FLARE workspace names its federation folder and its data.

Nothing of it is part of a job. In texts, `{site}` is replaced by the name of the site, so that one file can serve all sites of a
simulation.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import Field, ValidationError

from verfedgnn.config import explain_invalid
from verfedgnn.config.sections import Section
from verfedgnn.core.errors import ConfigError
from verfedgnn.core.files import make_folder, write_bytes, writing

SITE_FILE = "verfedgnn.toml"
ALLOWED_CLASSES = (
    "verfedgnn_flare.controller.FederationController",
    "verfedgnn_flare.executor.PartyExecutor",
)
"""Classes of a job that a site must allow in `class_allow_list`."""
_RESOURCES = "resources.json"


class SiteSettings(Section):
    """Where a site has its federation folder, its ratings and its run folder, and how it computes."""

    federation: Path
    """Folder with federation.toml and the private key: `key.pem` of a party, `coordinator.key` at FLARE's server."""
    ratings: str | None = None
    """Ratings of a party: a file, a folder or postgresql://...; FLARE's server has none."""
    out: Path | None = None
    """Run folder, resumed if it exists. Default: run, in the federation folder."""
    reading: dict[str, str] = Field(default_factory=dict)
    """Options for reading the ratings, as in `verfedgnn party`: columns, events, scale and so on."""
    device: str = "cpu"
    """Name of the device on which the party computes, such as cpu or cuda."""
    threads: int = Field(1, ge=0)
    """CPU threads; 0 means all cores."""
    processes: int = Field(0, ge=0)
    """Processes for aligning users by ecdh; 0 means one per core."""
    pad_users: int = Field(0, ge=0)
    """Number of users to announce at least, random ones among them."""
    checkpoint_every: int = Field(1, ge=1)
    """Number of rounds between two checkpoints of a party."""
    after: Path | None = None
    """Run folder of a party's training before this one."""

    @property
    def run_folder(self) -> Path:
        """The folder that holds the run of this site."""
        return self.out or self.federation / "run"


def read_site_settings(local: Path, site: str) -> SiteSettings:
    """Return the settings of a site from the folder `local` of its FLARE workspace."""
    file = local / SITE_FILE
    try:
        values = tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{site} has no {file}; create it with `verfedgnn flare site WORKSPACE --federation FOLDER`"
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from None
    try:
        return SiteSettings.model_validate(_fill_site(values, site))
    except ValidationError as error:
        raise ConfigError(f"{file}: {explain_invalid(error)}") from None


def prepare_site(workspace: Path, settings: dict[str, Any]) -> Path:
    """Write the settings of a site into its FLARE workspace and allow the classes of a job there; return the file.

    The site's `resources.json` is written if there is only FLARE's `resources.json.default`, which stays as it is.
    """
    local = workspace / "local"
    if not local.is_dir():
        raise ConfigError(f"{workspace} is no FLARE workspace: it has no folder 'local'")
    try:
        SiteSettings.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(explain_invalid(error)) from None
    resources_file = local / _RESOURCES
    default = local / f"{_RESOURCES}.default"
    try:
        found = next((file for file in (resources_file, default) if file.is_file()), None)
        resources = {"format_version": 2} if found is None else json.loads(found.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {found}: {error}") from None
    allow_classes(resources)
    with writing(local):
        make_folder(local)
        write_bytes(resources_file, json.dumps(resources, indent=2).encode())
        write_bytes(local / SITE_FILE, tomli_w.dumps(settings).encode())
    return local / SITE_FILE


def allow_classes(resources: dict[str, Any]) -> None:
    """Add the classes of a job to `class_allow_list` of a site's resources, which replaces FLARE's default list."""
    from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

    allowed = resources.setdefault("class_allow_list", list(DEFAULT_CLASS_ALLOW_LIST))
    allowed += [name for name in ALLOWED_CLASSES if name not in allowed]


def _fill_site(value: Any, site: str) -> Any:
    if isinstance(value, str):
        return value.replace("{site}", site)
    if isinstance(value, dict):
        return {key: _fill_site(part, site) for key, part in value.items()}
    return value
