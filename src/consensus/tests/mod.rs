//! Tests of consensus.
