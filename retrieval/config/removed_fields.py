"""Fields that configs no longer have, and what took the place of each."""

# Field, such as 'train.steps' -> a sentence: what to do in its place.
REMOVED: dict[str, str] = {
    "plan.passages": "A plan is of the train step alone. Encode part of a collection to see how long it takes.",
    "plan.tune": "Plan each setting by itself, such as --config.model.remat=dots, and compare the plans.",
}


def explained(field: str) -> str:
    """An error's message for a field that is gone; empty for any other."""
    return f"config.{field} is gone: {REMOVED[field]}" if field in REMOVED else ""
