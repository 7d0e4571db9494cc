"""Running two small functions of foreign code side by side, taken out of their tree, in a process of their own."""
