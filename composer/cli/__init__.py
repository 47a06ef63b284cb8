"""The command line: one file a command. Each reads its options, calls a function of `composer`, and prints."""
