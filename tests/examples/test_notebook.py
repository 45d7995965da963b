"""The notebook runs from its first cell to its last, and ends in plots."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.process import ROOT
from tests.spark.fixtures import Writer, publish


@pytest.mark.spark
@pytest.mark.slow
def test_the_notebook(quick_java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(tmp_path / "data")
    writer.write(*(publish(n, "plant/1", b'{"temp": %d, "load": 0.5}' % n) for n in range(100)))
    writer.close()
    monkeypatch.setenv("HUBBUB_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    # As where nobody has activated the environment that the kernel runs in.
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    text = (ROOT / "examples" / "telemetry.ipynb").read_text("utf-8")
    notebook = nbformat.reads(text, as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=110, kernel_name="python3").execute(cwd=str(tmp_path))
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 2
    assert not [output for output in outputs if output.get("name") == "stderr"], outputs
