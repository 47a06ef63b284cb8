"""The live page: a spec on the left; its mistakes, picture, costs and program on the right."""
