"""Students of a real language model, trained and scored beside it: the runs behind docs/smollm2.md."""
