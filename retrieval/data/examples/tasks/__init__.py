"""The tasks: of a corpus, and of labelled examples. `task_kind.TASKS` imports them."""

NAMES = {"task": {"corpus_tasks": "ict bfs wlp", "labelled_tasks": "pairs"}}
