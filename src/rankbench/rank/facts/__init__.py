"""Facts for the record: hardware, software, memory, CPU time, communication speed."""
