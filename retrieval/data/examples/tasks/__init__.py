"""The pre-training tasks, one a file. `task_kind.TASKS` imports them."""
