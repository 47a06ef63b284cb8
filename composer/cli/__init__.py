"""``compose``: reads the command line, runs a command of `composer.commands`, and reports mistakes."""
