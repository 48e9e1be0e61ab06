"""HTML: table.html, and the site with its page and downloads."""
