"""The flags of a command, which are global."""

import sys

from absl import flags


def forget_flags():
    """absl's flags are global, and what one command line has set is still set in the next."""
    for name in [name for name in flags.FLAGS if name.startswith("config.")]:
        delattr(flags.FLAGS, name)
    flags.FLAGS.unparse_flags()
    sys.modules.pop("config_config", None)  # the last config file: the next is loaded into the same module
    ours = {"config", "workdir", "scratch", "stage", "query", "queries", "json", "multihost", "only", "list"}
    for name in ours & set(flags.FLAGS):
        flags.FLAGS[name].unparse()
