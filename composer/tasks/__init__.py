"""Seeded texts with known answers, to train on and to be scored on: ``catalogue.TASKS`` has them by name."""
