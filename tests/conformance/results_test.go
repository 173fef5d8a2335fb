package conformance

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/yaml"
)

// results is what became of each test. The suite's report names tests that failed or were skipped, and only those of a
// profile.
type results struct {
	began time.Time
	mu    sync.Mutex
	of    map[string]string
}

// add is the suite's hook after each test. Who waits sees on standard error what the test's own output is too long for.
func (r *results) add(t *testing.T, test suite.ConformanceTest, _ *suite.ConformanceTestSuite) {
	r.mu.Lock()
	defer r.mu.Unlock()
	result := "passed"
	switch {
	case t.Failed():
		result = "failed"
	case t.Skipped():
		result = "skipped"
	}
	r.of[test.ShortName] = result
	if result != "skipped" {
		fmt.Fprintf(os.Stderr, "%5.0f s  %s %s\n", time.Since(r.began).Seconds(), result, test.ShortName)
	}
}

// write writes the results of tests to a file, by name, and says how many there are of each.
func (r *results) write(t *testing.T, path string, chosen []suite.ConformanceTest) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.of, func(name, _ string) bool { return !slices.ContainsFunc(chosen, named(name)) })
	count := map[string]int{}
	for _, result := range r.of {
		count[result]++
	}
	fmt.Fprintf(os.Stderr, "%5.0f s  %d tests: %d passed, %d failed, %d skipped\n", time.Since(r.began).Seconds(), len(chosen),
		count["passed"], count["failed"], count["skipped"])
	text, err := yaml.Marshal(r.of)
	if err == nil {
		err = os.WriteFile(path, text, 0o644)
	}
	if err != nil {
		t.Error(err)
	}
}
