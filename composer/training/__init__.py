"""Training: the stages of a recipe, resumable to the same bits."""
