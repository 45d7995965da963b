"""The documents are true: what they show is run, and what there is they mention.

A fenced `console` block under the comment `<!-- tested -->` is typed into a shell, one line after
`$ ` at a time, against a real hub; the lines below a command are what it has to print (a command
without any may print what it likes). `<!-- tested spark -->` is for blocks that start Spark.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from hubbub.cli import _COMMANDS, app
from hubbub.cluster import frames
from hubbub.journal.segments import FORMAT
from hubbub.pipeline import iceberg, layout
from hubbub.server import _FIXED
from tests.process import RunningHub, StartHub

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FILE = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)
MIGRATIONS = sorted(ROOT.glob("docs/migrate/*.md"))
BLOCK = re.compile(r"<!-- tested( spark)? -->\n```console\n(.*?)```", re.DOTALL)
DEFAULT_PORT = re.compile(r"127\.0\.0\.1:(?:1883|8080)")


class Block(NamedTuple):
    text: str
    spark: bool


def blocks(name: str) -> list[Block]:
    text = (ROOT / name).read_text("utf-8")
    return [Block(found[2], bool(found[1])) for found in BLOCK.finditer(text)]


def commands(block: str) -> Iterator[tuple[str, str]]:
    """Each command with the output that is shown for it."""
    for part in block.split("$ ")[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def at(hub: RunningHub, command: str) -> str:
    """The command as typed, but for this hub instead of the one on the default ports."""
    command = DEFAULT_PORT.sub(hub.address, command)
    words = shlex.split(command)
    scheme = {"pub": "mqtt", "sub": "mqtt"} | dict.fromkeys(("status", "switch", "history"), "http")
    if words[0] == "hubbub" and words[1] in scheme and "--url" not in words:
        where = f" --url {hub.url(scheme[words[1]])}"
        command = command.removesuffix(" &") + where + " &" * command.endswith(" &")
    return command


def type_in(hub: RunningHub, block: str, folder: Path) -> None:
    """Run the commands of a block in order, those with `&` beside the rest."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")}
    beside = []
    try:
        for command, shown in commands(block):
            typed = at(hub, command)
            process = subprocess.Popen(
                ["bash", "-c", "exec " + typed.removesuffix(" &")],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            if typed.endswith(" &"):
                beside.append(process)
                continue
            output, _ = process.communicate()
            assert process.returncode == 0, f"{typed}\n{output}"
            output = output.removesuffix("\n") + "\n"  # curl adds none
            assert not shown or output == shown, typed
    finally:
        for process in beside:
            process.send_signal(signal.SIGKILL)
            process.communicate()


@pytest.mark.interop
@pytest.mark.slow
def test_the_quick_start_works_as_typed(start_hub: StartHub, tmp_path: Path) -> None:
    hub = start_hub(data=tmp_path / "hubbub-data")
    for block in blocks("README.md"):
        if not block.spark:
            type_in(hub, block.text, tmp_path)


@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)  # starts of Spark, on a machine that may be busy
def test_the_quick_start_with_spark_works_as_typed(
    quick_java: None, start_hub: StartHub, tmp_path: Path
) -> None:
    hub = start_hub(data=tmp_path / "hubbub-data")
    first = blocks("README.md")[0]  # what the query then finds
    for block in (first, *(block for block in blocks("README.md") if block.spark)):
        type_in(hub, block.text, tmp_path)


@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)  # three starts of Spark, on a machine that may be busy
def test_the_guide_to_the_pipeline_works_as_typed(
    quick_java: None, start_hub: StartHub, tmp_path: Path
) -> None:
    hub = start_hub(data=tmp_path / "hubbub-data")
    for block in blocks("docs/guide/pipeline.md"):
        type_in(hub, block.text, tmp_path)
    assert (tmp_path / "temp.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.interop
@pytest.mark.slow
def test_what_an_operator_does_works_as_typed(start_hub: StartHub, tmp_path: Path) -> None:
    """With pipes and files, so the hub is said in the surroundings."""
    hub, page = start_hub(data=tmp_path / "hubbub-data"), "docs/guide/operation.md"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    found = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")}
    for block in blocks(page):
        for command, shown in commands(block.text):
            done = subprocess.run(
                ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60,
                env={**found, "HUBBUB_URL": hub.url("mqtt")}, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            assert done.returncode == 0, (command, done.stderr)
            assert not shown or done.stdout == shown, (command, done.stderr)


def test_what_needs_a_restart_is_said_of_each_setting() -> None:
    page = (ROOT / "docs/guide/operation.md").read_text("utf-8")
    (part,) = re.findall(r"## What a reload takes\n(.*?)\n## ", page, re.DOTALL)
    for name in _FIXED:
        assert f"`{name.removeprefix('journal.')}`" in part, name


def follow(hub: RunningHub, page: Path, folder: Path) -> None:
    """Make the files that a page shows, and type its commands."""
    for name, lines in FILE.findall(page.read_text("utf-8")):
        (folder / name).write_text(DEFAULT_PORT.sub(hub.address, lines))
    for block in blocks(str(page.relative_to(ROOT))):
        type_in(hub, block.text, folder)


@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.parametrize("page", MIGRATIONS, ids=lambda page: page.stem)
def test_who_comes_from_elsewhere_types_what_works(
    page: Path, start_hub: StartHub, tmp_path: Path
) -> None:
    if "mosquitto_pub" in page.read_text("utf-8") and not shutil.which("mosquitto_pub"):
        pytest.skip("needs mosquitto-clients")
    follow(start_hub(data=tmp_path / "hubbub-data"), page, tmp_path)


@pytest.mark.interop
def test_who_takes_a_new_version_types_what_works(start_hub: StartHub, tmp_path: Path) -> None:
    """And what the page says of versions is what the programs say."""
    page = ROOT / "docs/guide/upgrade.md"
    follow(start_hub(data=tmp_path / "hubbub-data"), page, tmp_path)
    text = page.read_text("utf-8")
    said = (f"`{FORMAT.strip()}`", f"({layout.VERSION})", f"`{iceberg._VERSION}` of each table")
    assert all(one in text for one in (*said, f"this node speaks {frames.VERSION}"))


@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)  # a start of Spark, on a machine that may be busy
def test_the_first_hour_works_as_typed(
    quick_java: None, start_hub: StartHub, tmp_path: Path
) -> None:
    page = ROOT / "docs/tutorial/first-hour.md"
    follow(start_hub(data=tmp_path / "hubbub-data"), page, tmp_path)


def test_there_is_something_to_type() -> None:
    assert len(blocks("README.md")) >= 3
    assert any(block.spark for block in blocks("README.md"))


def leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every command that does something, by the words one types."""
    if not hasattr(command, "list_commands"):
        yield name, command
        return
    context = command.make_context(name, ["--help"], resilient_parsing=True)
    for inner in command.list_commands(context):
        yield from leaves(command.get_command(context, inner), f"{name} {inner}")


def test_every_command_and_option_is_documented() -> None:
    text = (ROOT / "docs/commands.md").read_text("utf-8")
    sections = dict(re.findall(r"^#+ (hubbub[^\n]*)\n(.*?)(?=^#|\Z)", text, re.M | re.S))
    known = dict(leaves(typer.main.get_command(app), "hubbub"))
    assert set(sections) - {"hubbub"} == set(known)
    for name, command in known.items():
        for option in command.params:
            for flag in (flag for flag in option.opts if flag.startswith("--")):
                assert f"`{flag}" in sections[name], f"{name} {flag} is not in docs/commands.md"


def test_who_is_told_a_url_is_told_whom_to_trust() -> None:
    for name, command in leaves(typer.main.get_command(app), "hubbub"):
        flags = {flag for option in command.params for flag in option.opts}
        assert "--cafile" in flags or not flags & {"--url", "--hub"}, name


def test_no_document_names_an_option_that_is_not_there() -> None:
    top = typer.main.get_command(app)
    known = dict(leaves(top, "hubbub"))
    its_own = {flag for option in top.params for flag in option.opts} | {"--help"}
    for file in DOCUMENTS:
        for line in re.findall(r"(?:^\$ |`)(hubbub [^`\n]+)", file.read_text("utf-8"), re.M):
            words = line.split()
            name = next((n for n in known if line.startswith(n)), "")
            options = (
                {flag for option in known[name].params for flag in option.opts} if name else ()
            )
            for word in words:
                if name and word.startswith("--"):
                    assert word.partition("=")[0] in options, f"{file.name}: {line}"
            assert words[1].strip(":,.") in {*_COMMANDS, *its_own}, line


def test_links_between_documents_lead_somewhere() -> None:
    for file in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", file.read_text("utf-8")):
            assert (file.parent / target).exists(), f"{file.name}: {target}"


def test_the_list_of_pages_has_every_page_by_its_title() -> None:
    index = ROOT / "docs/README.md"
    listed = re.findall(r"^\* \[(.*)\]\((.*)\)$", index.read_text("utf-8"), re.M)
    for title, page in listed:
        assert (index.parent / page).read_text("utf-8").startswith(f"# {title}\n"), page
    found = {(index.parent / page).resolve() for _, page in listed}
    missing = {*ROOT.glob("docs/**/*.md")} - found - {index}
    assert not missing and len(found) == len(listed)


@pytest.mark.interop
def test_the_site_is_made_without_a_warning_and_asks_no_other_machine(tmp_path: Path) -> None:
    pytest.importorskip("zensical")
    command = [sys.executable, str(ROOT / "docs/site.py"), str(tmp_path / "docs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = [page.read_text("utf-8") for page in (tmp_path / "docs/site").rglob("*.html")]
    assert len(pages) > len(DOCUMENTS)
    for page in pages:
        assert not re.search(r"""<(?:script|img|iframe)[^>]*\ssrc=["']?(?:https?:)?//""", page)
        assert not re.search(r"""<link[^>]*\srel=["']?(?:stylesheet|preconnect)[^>]*//""", page)


def test_make_has_every_target_that_the_documents_use() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.M))
    for file in DOCUMENTS:
        text = file.read_text("utf-8")
        used = set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.M))
        assert used <= targets, f"{file.name}: {used - targets}"


def test_the_changelog_knows_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "hubbub.__version__"}
    from hubbub import __version__

    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
