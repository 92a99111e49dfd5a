"""The commands, by what they are about. Options and defaults are Frappe's."""
