"""What chaos and bench share: histories, effects, contracts, checkers and the store."""
