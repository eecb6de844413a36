"""What stands in arrays of token ids where no token is."""

# Below every id: each id from 0 on is a token, the vocabulary's own of padding too.
FILLER = -1
