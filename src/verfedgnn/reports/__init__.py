"""Documents for people: built once, read as Markdown or as one HTML file that needs nothing else."""
