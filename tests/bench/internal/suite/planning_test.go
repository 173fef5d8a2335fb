package suite

import (
	"testing"
	"time"
)

func TestColdStartsAreWhatTheBenchmarkReports(t *testing.T) {
	const output = "goos: linux\nBenchmarkConcurrentColdStart-2   \t       8\t 900000000 ns/op\t 250000000 one-processor-ns\t 140000000 " +
		"two-processors-ns\nPASS\n"
	one, two, err := coldStarts(output)
	if err != nil || one != 250*time.Millisecond || two != 140*time.Millisecond {
		t.Errorf("%v and %v, error %v", one, two, err)
	}
	if _, _, err := coldStarts("BenchmarkConcurrentColdStart-2 1 140000000 ns/op"); err == nil {
		t.Error("no error without the metrics")
	}
}
