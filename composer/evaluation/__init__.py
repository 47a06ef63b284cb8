"""Models scored on tasks: each model on each task at each length."""
