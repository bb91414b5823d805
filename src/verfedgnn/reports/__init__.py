"""Reports: documents that are built once and written as Markdown and as one self-contained HTML page."""
