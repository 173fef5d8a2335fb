//go:build !race

package testkit

// RaceFactor is how many times longer than usual a test that measures time may take, because the race detector slows
// code down.
const RaceFactor = 1
