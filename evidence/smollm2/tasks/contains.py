"""The metric of a task with generated answers."""


def contains(doc: dict[str, str], results: list[str]) -> dict[str, float]:
    """Return 1 if the text contains the correct answer in upper or lower case, else 0."""
    return {"contains": float(doc["correct_answer"].lower() in results[0].lower())}
