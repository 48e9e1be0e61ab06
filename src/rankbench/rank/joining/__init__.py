"""How the ranks of a launch find each other, and which devices each one takes."""
