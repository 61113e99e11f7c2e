"""Published tables as files (settings, methods, the papers' numbers and claims), and what runs them."""
