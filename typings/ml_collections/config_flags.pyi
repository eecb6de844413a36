from typing import Any

def DEFINE_config_file(  # noqa: N802
    name: str, default: str | None = ..., help_string: str = ..., **kwargs: Any
) -> Any: ...
