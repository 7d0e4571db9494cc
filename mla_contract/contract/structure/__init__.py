"""What the shape of one record can tell: presence, types, element types, axes, residence and strides."""
