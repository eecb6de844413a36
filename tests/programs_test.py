import jax
import pytest

from retrieval.runtime import programs

"""Programs are kept on accelerators alone, and where the user wants them."""


@pytest.mark.parametrize(
    ("backend", "environment", "kept"),
    [("gpu", None, True), ("tpu", None, True), ("cpu", None, False), ("gpu", "/elsewhere", False), ("gpu", "", False)],
)
def test_programs_are_kept_on_accelerators(monkeypatch, tmp_path, backend, environment, kept):
    changed = {}
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(jax.config, "update", changed.__setitem__)
    monkeypatch.setattr(type(jax.config), "jax_compilation_cache_dir", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    if environment is not None:
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", environment)
    programs.keep.__wrapped__()
    assert changed.get("jax_compilation_cache_dir") == (str(tmp_path / "retrieval" / "programs") if kept else None)
    assert bool(changed.get("jax_compilation_cache_max_size")) == kept
