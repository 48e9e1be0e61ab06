"""How ranks are started and joined, and how their supervisor hears of them."""
