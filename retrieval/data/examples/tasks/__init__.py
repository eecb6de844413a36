"""The tasks: of a corpus, and of labelled examples. `task_kind.TASKS` imports them."""
