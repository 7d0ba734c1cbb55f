"""Reads the folders that training runs leave behind, and shows them."""
