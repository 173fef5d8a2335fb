//go:build race

package serve_test

// raceEnabled says that the race detector slows this process down, the clients of attacks as well as the server.
const raceEnabled = true
