//go:build race

package differential_test

const raceDetector = true
