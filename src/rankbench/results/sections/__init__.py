"""Tables and plots that people read, one file each. They are found automatically."""
