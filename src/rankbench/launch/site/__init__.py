"""What the machine and its hosts are, and whether they are as the site file says."""
