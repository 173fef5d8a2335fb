// Package report tells of a run of scenarios: as JUnit XML for machines, as a table for people.
package report

import (
	"encoding/xml"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Result is how a scenario went.
type Result struct {
	Topology, Name string
	Took           time.Duration
	// Failure is empty if the scenario passed; Skipped says why it was not run, if it was not.
	Failure, Skipped string
	// Note says what else the table should tell of the scenario; mostly empty.
	Note string
}

// Report gathers results; it may be used by several goroutines.
type Report struct {
	mu      sync.Mutex
	results []Result
}

// Add adds a result.
func (r *Report) Add(result Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results = append(r.results, result)
}

// Results are sorted by topology and name.
func (r *Report) Results() []Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.SortedStableFunc(slices.Values(r.results), func(a, b Result) int {
		if c := strings.Compare(a.Topology, b.Topology); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
}

type testSuites struct {
	XMLName xml.Name    `xml:"testsuites"`
	Suites  []testSuite `xml:"testsuite"`
}

type testSuite struct {
	Name     string     `xml:"name,attr"`
	Tests    int        `xml:"tests,attr"`
	Failures int        `xml:"failures,attr"`
	Skipped  int        `xml:"skipped,attr"`
	Seconds  string     `xml:"time,attr"`
	Cases    []testCase `xml:"testcase"`
}

type testCase struct {
	Class   string   `xml:"classname,attr"`
	Name    string   `xml:"name,attr"`
	Seconds string   `xml:"time,attr"`
	Failure *failure `xml:"failure,omitempty"`
	Skipped *skipped `xml:"skipped,omitempty"`
}

type failure struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

type skipped struct {
	Message string `xml:"message,attr"`
}

// WriteJUnit writes the results as JUnit XML, a suite per topology.
func (r *Report) WriteJUnit(path string) error {
	var all testSuites
	var took time.Duration
	for _, result := range r.Results() {
		if n := len(all.Suites); n == 0 || all.Suites[n-1].Name != result.Topology {
			all.Suites = append(all.Suites, testSuite{Name: result.Topology})
			took = 0
		}
		suite := &all.Suites[len(all.Suites)-1]
		took += result.Took
		suite.Tests++
		suite.Seconds = seconds(took)
		c := testCase{Class: "scenarios." + result.Topology, Name: result.Name, Seconds: seconds(result.Took)}
		if result.Failure != "" {
			suite.Failures++
			first, _, _ := strings.Cut(result.Failure, "\n")
			c.Failure = &failure{Message: first, Text: result.Failure}
		}
		if result.Skipped != "" {
			suite.Skipped++
			c.Skipped = &skipped{Message: result.Skipped}
		}
		suite.Cases = append(suite.Cases, c)
	}
	raw, err := xml.MarshalIndent(all, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, slices.Concat([]byte(xml.Header), raw, []byte("\n")), 0o644)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }

// Table has a line per scenario that did not pass or has a note, and one per topology.
func (r *Report) Table() string {
	type count struct {
		passed, failed, skipped int
		took                    time.Duration
	}
	var out strings.Builder
	var topologies []string
	counts := map[string]*count{}
	for _, result := range r.Results() {
		c := counts[result.Topology]
		if c == nil {
			c = &count{}
			counts[result.Topology] = c
			topologies = append(topologies, result.Topology)
		}
		c.took += result.Took
		if result.Note != "" {
			fmt.Fprintf(&out, "NOTE     %s/%s: %s\n", result.Topology, result.Name, result.Note)
		}
		switch {
		case result.Failure != "":
			c.failed++
			first, _, _ := strings.Cut(result.Failure, "\n")
			fmt.Fprintf(&out, "FAILED   %s/%s: %s\n", result.Topology, result.Name, first)
		case result.Skipped != "":
			c.skipped++
			fmt.Fprintf(&out, "SKIPPED  %s/%s: %s\n", result.Topology, result.Name, result.Skipped)
		default:
			c.passed++
		}
	}
	fmt.Fprintf(&out, "%-28s %7s %7s %8s %9s %8s\n", "topology", "passed", "failed", "skipped", "seconds", "each")
	var total count
	line := func(name string, c *count) {
		n := max(1, c.passed+c.failed)
		fmt.Fprintf(&out, "%-28s %7d %7d %8d %9.1f %8.2f\n", name, c.passed, c.failed, c.skipped, c.took.Seconds(), c.took.Seconds()/float64(n))
	}
	for _, name := range topologies {
		c := counts[name]
		line(name, c)
		total.passed, total.failed, total.skipped, total.took = total.passed+c.passed, total.failed+c.failed, total.skipped+c.skipped,
			total.took+c.took
	}
	line("all", &total)
	return out.String()
}
