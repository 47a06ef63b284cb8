"""The metric of a task that is scored by what a model writes."""


def contains(doc: dict[str, str], results: list[str]) -> dict[str, float]:
    """Return 1 where the text contains the correct answer, whatever the case of its letters, else 0."""
    return {"contains": float(doc["correct_answer"].lower() in results[0].lower())}
