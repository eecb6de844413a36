"""What takes seconds to import, and is imported once for all processes of `children`. It starts no thread."""

import clu.metric_writers  # noqa: F401
import ir_measures  # noqa: F401
import matplotlib.figure  # noqa: F401
import seqio  # noqa: F401
import tensorflow  # noqa: F401

import retrieval.main  # noqa: F401
from retrieval.data.examples.task_kind import TASKS
from retrieval.recipes.recipe import RECIPES
from retrieval.runs.pipeline.stage import STAGES
from retrieval.training.loss_kind import LOSSES

for table in (STAGES, RECIPES, TASKS, LOSSES):
    dict(table)  # imports every entry
