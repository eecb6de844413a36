"""The weight of a reader's score that the validation set of the stage `answer` chose."""

from retrieval.methods.reader.readers import KIND
from retrieval.pipeline import records
from retrieval.stage_outputs import Run

MODEL = "config.answer.model"
# Of each set and system in what the stage tells: the weight, and how many questions chose it, 0 for none.
WEIGHT, VALIDATION = "weight", "validation"


def told_of(name: str, system: str) -> str:
    """The key of a set and a system, as tables name it, in what the stage tells."""
    return f"{name}, {system}"


def chosen_weight(run: Run, system: str) -> float | None:
    """The weight that `answer.validation` chose for the hits of a system, as tables name it.

    Returns:
      None where no set is named or none has chosen, or for another reader or with other settings.
    """
    fields, holder = run.config.answer, run.holder("answer")
    if not fields.validation or not records.is_done(holder, "answer") or records.changed_fields(holder, "answer"):
        return None
    theirs = holder.config.answer
    if (theirs.validation, theirs.sums) != (fields.validation, fields.sums):
        return None
    if KIND.trainer(holder, theirs.model, MODEL).folder != KIND.trainer(run, fields.model, MODEL).folder:
        return None
    told = records.details(holder, "answer").get(told_of(fields.validation, system), {})
    return told[WEIGHT] if told.get(VALIDATION) else None
