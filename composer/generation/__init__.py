"""Models that write text, and the states of texts they have read, for several commands."""
