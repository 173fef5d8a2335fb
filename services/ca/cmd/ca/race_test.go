//go:build race

package main

// raceEnabled says that the test binary, which is also the ca that the tests start, has the race detector.
const raceEnabled = true
