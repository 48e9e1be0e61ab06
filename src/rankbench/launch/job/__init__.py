"""A job: the attempts of its cells, their claims, and which launch is next."""
