//go:build !race

package differential

const raceDetector = false
