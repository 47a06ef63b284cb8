"""What each command does: its options, the function of Python that runs it, and what the command line prints of the result."""
