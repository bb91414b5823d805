"""The wheel contains what the program needs, has correct metadata, and works where it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import verfedgnn

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what is built to a separate repository with the tag v7.8.9."""
    pytest.importorskip("build", reason="the extra dev is not installed")
    pytest.importorskip("setuptools_scm", reason="the extra dev is not installed")
    if shutil.which("git") is None:
        pytest.skip("no git: the version comes from its tags")
    source = tmp_path_factory.mktemp("source")
    for name in ("src", "packages"):
        left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=left_out)
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    settings = ("user.name=test", "user.email=test@example.org", "commit.gpgsign=false", "tag.gpgsign=false")
    who = [word for setting in settings for word in ("-c", setting)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"], ["tag", "v7.8.9"]):
        subprocess.run(["git", *who, *words], cwd=source, check=True)
    return source


def build(folder: Path, out: Path, kind: str = "wheel") -> Path:
    """Build a wheel or an sdist without isolation or network."""
    words = [sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", str(out)]
    built = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    (found,) = out.iterdir()
    return found


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the product."""
    return build(source, tmp_path_factory.mktemp("dist"))


@pytest.mark.parametrize(
    ("name", "needs", "offers"),
    [
        ("verfedgnn-research", {"matplotlib", "verfedgnn"}, "audit = verfedgnn_research.cli"),
        ("verfedgnn-flare", {"nvflare", "verfedgnn"}, "flare = verfedgnn_flare.flare_command:app"),
    ],
)
def test_packages_hold_their_code_and_offer_their_commands(
    name: str, needs: set[str], offers: str, source: Path, tmp_path: Path
) -> None:
    archive = zipfile.ZipFile(build(source / "packages" / name, tmp_path))
    module = name.replace("-", "_")
    names, about = set(archive.namelist()), f"{module}-7.8.9.dist-info"
    wanted = (ROOT / "packages" / name / "src").rglob("*.py")
    assert {str(path.relative_to(ROOT / "packages" / name / "src")) for path in wanted} <= names
    assert {found.split("/")[0] for found in names} == {module, about}
    assert f"{about}/licenses/LICENSE" in names
    asked = Parser().parsestr(archive.read(f"{about}/METADATA").decode()).get_all("Requires-Dist", [])
    assert {re.split(r"[<>=!~ ]", one)[0] for one in asked} == needs
    assert offers in archive.read(f"{about}/entry_points.txt").decode()


def test_the_wheel_holds_everything_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = [
        path for path in (ROOT / "src" / "verfedgnn").rglob("*") if path.is_file() and path.suffix != ".pyc"
    ]
    assert {str(path.relative_to(ROOT / "src")) for path in wanted} <= names
    assert "verfedgnn/serving/page/page.html" in names
    assert {name.split("/")[0] for name in names} == {"verfedgnn", "verfedgnn-7.8.9.dist-info"}
    assert not [name for name in names if "__pycache__" in name]


def test_the_sdist_builds_and_holds_the_code_and_its_presets(source: Path, tmp_path: Path) -> None:
    with tarfile.open(build(source, tmp_path, "sdist")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/verfedgnn/config/presets/best.toml"} <= names
    assert not [name for name in names if name.startswith(("tests/", "results/"))]


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    about = Parser().parsestr(archive.read("verfedgnn-7.8.9.dist-info/METADATA").decode())
    assert about["Version"] == "7.8.9"
    assert about["License-Expression"] == "Apache-2.0"
    assert set(about.get_all("Provides-Extra", [])) >= {
        "federation",
        "psi",
        "dev",
    }
    assert (
        "verfedgnn = verfedgnn.cli.main:main"
        in archive.read("verfedgnn-7.8.9.dist-info/entry_points.txt").decode()
    )


def test_the_wheel_works_where_it_is_installed(wheel: Path, tmp_path: Path) -> None:
    """Install beside this environment's dependencies, in a folder that is found before this checkout."""
    place = tmp_path / "place"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--disable-pip-version-check",
    ]
    subprocess.run([*pip, "--target", str(place), str(wheel)], check=True)
    environment = {"PYTHONPATH": str(place), "PATH": "/usr/bin:/bin"}

    def said(*words: str) -> str:
        return subprocess.check_output([sys.executable, *words], cwd=tmp_path, env=environment, text=True)

    assert said(str(place / "bin" / "verfedgnn"), "--version") == "verfedgnn 7.8.9\n"
    assert said(
        "-c", "import verfedgnn; print(verfedgnn.Config.preset('best').base, verfedgnn.__file__)"
    ).split() == [
        "best",
        str(place / "verfedgnn" / "__init__.py"),
    ]


def test_the_version_is_the_installed_one() -> None:
    assert re.match(r"\d+\.\d+", verfedgnn.__version__)


def test_every_dependency_is_pinned() -> None:
    asked: list[str] = []
    for file in (ROOT / "pyproject.toml", *ROOT.glob("packages/*/pyproject.toml")):
        project = tomllib.loads(file.read_text("utf-8"))["project"]
        asked += project["dependencies"]
        asked += [one for extra in project.get("optional-dependencies", {}).values() for one in extra]
    pinned = {
        plain(line.split("==")[0])
        for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
        if "==" in line
    }
    names = {plain(re.split(r"[\[<>=!~ ]", one)[0]) for one in asked} - {"verfedgnn"}
    assert not names - pinned


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_continuous_integration_has_what_tests_would_be_skipped_without() -> None:
    installed = re.search(r"apt-get install (.*)", (ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert installed is not None
    assert {"chromium-browser", "prometheus"} <= set(installed[1].split())
