"""What machines of a cloud ask of a run: no bucket that is mounted, an end in time, and programs that are kept."""

import logging
import os
from types import SimpleNamespace

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache
from support import tiny

from retrieval.common.errors import UserError
from retrieval.common.runtime import artefacts, devices, signals
from retrieval.runs.pipeline import preflight
from retrieval.serving import server

pytest_plugins = ["support.machines_of_a_store"]


def test_a_bucket_that_gcsfuse_has_mounted_is_no_work_directory(inputs, tmp_path, monkeypatch):
    mounts, mounted = tmp_path / "mounts", tmp_path / "a bucket"
    mounted.mkdir()
    line = f"runs-of-all {str(mounted).replace(' ', chr(92) + '040')} fuse.gcsfuse rw,nosuid 0 0\n"
    mounts.write_text(f"overlay / overlay rw 0 0\n{line}")
    monkeypatch.setattr(preflight, "_MOUNTS", mounts)
    run = tiny.make_run("ict_bfs_wlp", inputs, mounted / "runs" / "one")
    with pytest.raises(UserError, match=r"gcsfuse has mounted .*, --workdir=gs://runs-of-all/runs/one$"):
        preflight.check(run, ["prepare"])
    preflight.check(tiny.make_run("ict_bfs_wlp", inputs, tmp_path / "one"), ["prepare"])


def test_a_server_ends_its_answers_before_the_machine_does(monkeypatch):
    pytest.importorskip("uvicorn", reason="launch/serve.lock is not installed")
    waits, stopped = [], SimpleNamespace(run=lambda sockets: None)
    monkeypatch.setattr(server, "_Server", lambda config, *_: waits.append(config.timeout_graceful_shutdown) or stopped)
    for seconds in (signals.GRACE, 12):
        monkeypatch.setattr(signals, "grace", seconds)
        with server.listen("127.0.0.1", 0) as listening:
            server.run(None, listening, lambda why: None)
    assert waits == [20, 7]


def test_compiled_programs_are_kept_where_no_variable_says_where(tmp_path, monkeypatch):
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    try:
        devices.keep_programs_at(str(tmp_path / "unused"))  # the tests have named another place
        monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
        devices.keep_programs_at(str(tmp_path / "programs"))
        jax.jit(lambda x: x * 3 + 1).lower(jax.ShapeDtypeStruct((7,), "float32")).compile()
        assert list((tmp_path / "programs").iterdir()) and not (tmp_path / "unused").exists()
    finally:
        compilation_cache.reset_cache()
        compilation_cache.set_cache_dir(before)


def test_the_log_of_each_start_is_on_the_store(bucket, machine):
    with pytest.raises(UserError), artefacts.opened("s3://bucket/run") as copy, artefacts.logged(copy):
        logging.getLogger("retrieval").warning("a page was dropped")
        raise UserError("the corpus has no page")
    with artefacts.opened("s3://bucket/run"):  # a folder with logs alone is a new one
        pass
    (name,) = [name for name in bucket.names() if "/logs/" in name]
    said = bucket.path(name).read_text()
    assert "a page was dropped\n" in said and "UserError: the corpus has no page\n" in said
    assert os.path.basename(name).startswith("host-0-")
