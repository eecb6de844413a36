"""Fields that configs no longer have, and what took the place of each."""

# Field or group of fields, such as 'train.steps' or 'train' -> a sentence: what to do in its place.
REMOVED: dict[str, str] = {
    "plan.passages": "A plan is of the train step alone. Encode part of a collection to see how long it takes.",
    "plan.tune": "Plan each setting by itself, such as --config.model.remat=dots, and compare the plans.",
}


def explained(field: str) -> str:
    """An error's message for a field that is gone, alone or with its group; empty for any other."""
    for name, sentence in REMOVED.items():
        if f"{field}.".startswith(f"{name}."):
            return f"config.{field} is gone: {sentence}"
    return ""
