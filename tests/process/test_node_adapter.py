"""An adapter whose queue is for Node: the script beside it, in an environment of its own."""

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from killproof_evidence import isolated
from killproof_evidence.adapter import Adapter

needs_node = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None,
    reason="there is no Node here: install Node.js",
)

ADAPTER = """
from killproof_evidence.adapter import Adapter
from killproof_evidence.contract import Contract
from killproof_evidence.isolated import NodePeer

class Lines(Adapter):
    name = "lines"
    contract = Contract()
    peer = NodePeer(name="lines", packages=(), npm_options=("--offline",))

target = Lines()
"""
SCRIPT = """
import { effect, serve } from "COMMON";
if (process.argv[2] === "client") {
  await serve(async (payload) => { await effect(payload); return { ok: payload.id }; });
}
"""


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a target for Node that needs no package, and so no network."""
    common = isolated.__file__.replace("killproof_evidence/isolated.py", "")
    common += "killproof_chaos/targets/public/_node.mjs"
    (tmp_path / "lines.py").write_text(ADAPTER, encoding="utf-8")
    (tmp_path / "lines.mjs").write_text(SCRIPT.replace("COMMON", common), encoding="utf-8")
    monkeypatch.setenv(isolated.FOLDER_VARIABLE, str(tmp_path / "peers"))
    monkeypatch.setenv("KILLPROOF_EFFECTS", str(tmp_path / "effects"))
    spec = importlib.util.spec_from_file_location("lines", tmp_path / "lines.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "lines", module)
    spec.loader.exec_module(module)
    return module.target


@needs_node
def test_a_queue_for_node_is_driven_by_the_script_beside_its_adapter(
    lines: Adapter, tmp_path: Path
) -> None:
    lines.prepare(tmp_path)
    client = lines.client(tmp_path)
    try:
        assert client.enqueue("report", {"id": "j1", "script": ["ok"]}) == "j1"
        with pytest.raises(Exception, match="the handler ended with 1"):
            client.enqueue("report", {"id": "j2", "script": ["raise"]})
        with pytest.raises(Exception, match="this queue has no cancel"):
            client.cancel("j1")
    finally:
        client.close()

    told = "".join(path.read_text() for path in (tmp_path / "effects").glob("*.jsonl"))
    assert '"job":"j1"' in told
