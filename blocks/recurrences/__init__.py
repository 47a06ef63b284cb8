"""Recurrences: what a state memory computes. A kernel belongs to a recurrence and a rank of decay, never to a gate."""
