"""Statistics on launches. No text, no files."""
