"""A third party's backend with a quiet fault: each token attends to the positions that the token before it selected."""
