"""The flags of a command, which are global."""

from absl import flags


def forget_flags():
    """absl's flags are global, and what one command line has set is still set in the next."""
    flags.FLAGS.unparse_flags()
    ours = {"config", "workdir", "scratch", "stage", "query", "queries", "json", "multihost", "only", "list"}
    for name in ours & set(flags.FLAGS):
        flags.FLAGS[name].unparse()
