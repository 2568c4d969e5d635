//! Every expectation can fail.
