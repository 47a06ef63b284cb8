"""What each command does, as functions: the command line and programs call the same ones, programs by ``import composer``."""
