"""How results are shown: tables, plots, words for numbers, progress, the terminal."""
