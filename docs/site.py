"""Makes a site of all documents in build/site: `make docs`. The list of docs/README.md is its menu.

The documents link to each other, and to files of the source, as they lie in the checkout. So that
the same links hold in the site, what it is made of is a copy in the same order. Zensical checks the
links, and in strict mode a warning is an error. The pages ask no other machine for anything.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/README.md")
LINK: Final = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
ENTRY: Final = re.compile(r"^(?:## (?P<section>.*)|\* \[(?P<title>.*)\]\((?P<page>[^)]*)\))$", re.M)
SITE: Final = """\
[project]
site_name = "Hubbub"
site_description = "One hub for every voice: SMQ, MQTT and message-switch on one port"
docs_dir = "pages"
site_dir = "site"
use_directory_urls = false
nav = %s

[project.theme]
language = "en"
font = false # those of the reader's machine: the pages load nothing from elsewhere
features = ["content.code.copy", "navigation.sections", "navigation.top", "search.highlight"]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Dark"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Light"
"""


def main() -> int:
    build = Path(sys.argv[1]).resolve() if sys.argv[1:] else ROOT / "build/docs"
    shutil.rmtree(build, ignore_errors=True)
    for page in [*PAGES, *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]:
        copy(page, build / "pages")
    (build / "zensical.toml").write_text(SITE % menu())
    words = ["zensical", "build", "--clean", "--strict", "-f", str(build / "zensical.toml")]
    code = subprocess.run([sys.executable, "-m", *words], cwd=build).returncode
    if code == 0:
        print(f"The site is in {build / 'site'}; begin at index.html.")
    return code


def copy(page: str, to: Path) -> None:
    """The page, and what it links to and is no page: a picture, a program, a file of settings."""
    text = (ROOT / page).read_text("utf-8")
    targets = [(ROOT / page).parent / target for target in LINK.findall(text)]
    files = [t.resolve() for t in targets if t.suffix != ".md" and t.is_file()]
    for file in [ROOT / page, *files]:
        place = to / file.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)


def menu() -> str:
    """The list of docs/README.md, as TOML writes arrays and inline tables."""
    sections: dict[str, list[str]] = {}
    for found in ENTRY.finditer((ROOT / "docs/README.md").read_text("utf-8")):
        if found["section"]:
            sections[found["section"]] = []
            continue
        page = (ROOT / "docs" / found["page"]).resolve().relative_to(ROOT)
        title = json.dumps(found["title"].replace("`", ""), ensure_ascii=False)
        sections[list(sections)[-1]].append(f'{{ {title} = "{page}" }}')
    parts = (f'{{ {json.dumps(name)} = [{", ".join(pages)}] }}' for name, pages in sections.items())
    return "[\n" + ",\n".join(['{ "Hubbub" = "README.md" }', *parts]) + ",\n]"


if __name__ == "__main__":
    sys.exit(main())
