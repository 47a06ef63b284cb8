"""What the papers claim, in miniature, on the teacher that ships with this project: ``make evidence`` writes docs/evidence.md."""
