"""The site: a page that shows plan and records, with what can be downloaded beside."""
