package conformance

import (
	"maps"
	"os"
	"slices"
	"sync"
	"testing"

	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/yaml"
)

// results is what became of each test. The suite's report names tests that failed or were skipped, and only those of a
// profile.
type results struct {
	mu sync.Mutex
	of map[string]string
}

// add is the suite's hook after each test.
func (r *results) add(t *testing.T, test suite.ConformanceTest, _ *suite.ConformanceTestSuite) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case t.Failed():
		r.of[test.ShortName] = "failed"
	case t.Skipped():
		r.of[test.ShortName] = "skipped"
	default:
		r.of[test.ShortName] = "passed"
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
	t.Logf("%d tests: %v", len(chosen), count)
	text, err := yaml.Marshal(r.of)
	if err == nil {
		err = os.WriteFile(path, text, 0o644)
	}
	if err != nil {
		t.Error(err)
	}
}
