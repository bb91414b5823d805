"""Reports: documents that are built once and written as one self-contained HTML page."""
