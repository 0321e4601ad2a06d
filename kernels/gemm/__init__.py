"""Matrix products with whatever is fused around them."""
