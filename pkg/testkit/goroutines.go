package testkit

import (
	"runtime"
	"strings"
)

// Goroutines counts the goroutines that are in a function whose name, with the path of its package, has one of these
// parts. What else runs in the process, such as what a library or an earlier test has not ended yet, does not count.
func Goroutines(parts ...string) int {
	records := make([]runtime.StackRecord, runtime.NumGoroutine()+100)
	n, ok := runtime.GoroutineProfile(records)
	for !ok {
		records = make([]runtime.StackRecord, n+100)
		n, ok = runtime.GoroutineProfile(records)
	}
	count := 0
	for i := range records[:n] {
		if isIn(records[i].Stack(), parts) {
			count++
		}
	}
	return count
}

func isIn(stack []uintptr, parts []string) bool {
	frames := runtime.CallersFrames(stack)
	for {
		frame, more := frames.Next()
		for _, part := range parts {
			if strings.Contains(frame.Function, part) {
				return true
			}
		}
		if !more {
			return false
		}
	}
}
