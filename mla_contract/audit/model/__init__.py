"""What a tree defines: modules, classes, types and backends, resolved across files."""
