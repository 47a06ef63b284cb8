"""Options classes, from which functions, commands and their checks are derived."""
