"""A student as a GGUF file for llama.cpp: the file, its tokenizer, and the comparison under llama.cpp."""
