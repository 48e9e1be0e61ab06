"""Cell + site -> processes: argv, environment, supervision, and the record of a launch."""
