"""What documents are made of: text fields, tables, notes, plot panels."""
