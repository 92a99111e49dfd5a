"""What Frappe keeps in a package of this name."""
