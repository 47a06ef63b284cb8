"""Looks inside models: what each head attends to, which memory answers, and what states still know."""
