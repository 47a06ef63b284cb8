"""Models and specs are written to the Hub."""
