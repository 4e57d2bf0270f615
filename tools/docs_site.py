"""A hook of MkDocs: the files outside docs/ that documents link to become part of the site.

Links are written as they work in a checkout, relative to the file. In the site docs/ is the root,
so `../ARCHITECTURE.md` is beside the pages of docs/, and README.md is the first page. Sources that
a page links to are copied as they are. A link that leads nowhere fails `mkdocs build --strict`.

The API reference names public classes, `::: saturnmq.Message`. They are documented where they are
defined in Python: a compiled kernel has no source to read.
"""

from __future__ import annotations

import os
import posixpath
import re
from importlib import import_module
from inspect import ismodule
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = "docs"
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "benchmarks/README.md": "benchmarks/README.md",
}
_LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")
_PUBLIC = re.compile(r"^::: (saturnmq(?:\.aio)?)\.(\w+)$", re.M)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/, and the sources that any page links to."""
    for path, place in PAGES.items():
        files.append(_file(path, place, config))
    pages = [*PAGES, *(f"{DOCS}/{page.src_uri}" for page in files.documentation_pages())]
    for path in pages:
        if not (ROOT / path).exists():
            continue  # of a page that another one is the source of
        for link in _LINK.findall((ROOT / path).read_text()):
            target = _target(path, link)
            if not target.endswith(".md") and (ROOT / target).is_file():
                place = target.removeprefix(f"{DOCS}/")
                if files.get_file_from_path(place) is None:
                    files.append(_file(target, place, config))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    of = {place: path for path, place in PAGES.items()}
    place = page.file.src_uri
    path = of.get(place, f"{DOCS}/{place}")

    def other(found: re.Match[str]) -> str:
        target = _target(path, found[1])
        at = PAGES.get(target, target.removeprefix(f"{DOCS}/"))
        return posixpath.relpath(at, posixpath.dirname(place) or ".")

    return _PUBLIC.sub(_defined, _LINK.sub(other, markdown))


def _defined(public: re.Match[str]) -> str:
    os.environ["SATURNMQ_KERNELS"] = "python"
    found = getattr(import_module(public[1]), public[2])
    return (
        f"::: {found.__name__ if ismodule(found) else f'{found.__module__}.{found.__qualname__}'}"
    )


def _target(path: str, link: str) -> str:
    """The file of the repository that `link`, in the file at `path`, leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def _file(path: str, place: str, config: MkDocsConfig) -> File:
    return File.generated(config, place, abs_src_path=str(ROOT / path))
