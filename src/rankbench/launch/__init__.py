"""Cell + site -> processes: argv, environment, supervision, and the record."""
