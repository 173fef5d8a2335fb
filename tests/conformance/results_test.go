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
	"sigs.k8s.io/gateway-api/pkg/features"
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

// write says how many of the chosen tests have passed, and writes the result of each into a file, unless its name is
// empty. A test that was skipped without an excuse is an error: a feature that is not claimed is not proven.
func (r *results) write(t *testing.T, path string, chosen []suite.ConformanceTest, excuses map[string]string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.of, func(name, _ string) bool { return !slices.ContainsFunc(chosen, named(name)) })
	count := map[string]int{}
	for name, result := range r.of {
		count[result]++
		if result == "skipped" && excuses[name] == "" {
			t.Errorf("%s was skipped: a feature that it needs is not claimed, and planes does not say why", name)
		}
	}
	fmt.Fprintf(os.Stderr, "%5.0f s  %d tests: %d passed, %d failed, %d skipped\n", time.Since(r.began).Seconds(), len(chosen),
		count["passed"], count["failed"], count["skipped"])
	if path == "" {
		return
	}
	text, err := yaml.Marshal(r.of)
	if err == nil {
		err = os.WriteFile(path, text, 0o644)
	}
	if err != nil {
		t.Error(err)
	}
}

func TestASkippedTestNeedsAnExcuse(t *testing.T) {
	p := &plane{Unsupported: map[features.FeatureName]string{"UDPRoute": "none"}, Fails: map[string]string{"HTTPRouteWeight": "none"}}
	excuses := p.excuses()
	for name, excused := range map[string]bool{"UDPRoute": true, "UDPRouteWeightedRouting": true, "HTTPRouteWeight": true, "TCPRouteReferenceGrant": false} {
		if _, is := excuses[name]; is != excused {
			t.Errorf("%s: excused is %v", name, is)
		}
	}
}
