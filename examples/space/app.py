"""The live page of specs as a Space of Hugging Face, or anywhere: ``python app.py``."""

from composer.viewing.page import look, page

demo = page()

if __name__ == "__main__":
    demo.launch(**look())
