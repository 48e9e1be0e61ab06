"""From sections to files: Markdown, HTML, LaTeX, CSV, plots and the site."""
