"""Readers of the forms in which people hold their images and labels."""
