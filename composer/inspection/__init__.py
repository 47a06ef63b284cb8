"""Inspection of models: what each head attends to, which memory answers, and what states recall."""
