// Package conformancereport makes docs/reference/gateway-api.md of what `make conformance` wrote: the reports of the
// Gateway API's conformance suite, and the results of its tests.
package conformancereport

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// runs are those of `make conformance`; of each there are NAME.yaml and NAME-tests.yaml.
var runs = []string{"gateway", "mesh"}

// report is what the page shows of the suite's report.
type report struct {
	Date              string `json:"date"`
	GatewayAPIVersion string `json:"gatewayAPIVersion"`
	GatewayAPIChannel string `json:"gatewayAPIChannel"`
	Implementation    struct {
		Project string `json:"project"`
		Version string `json:"version"`
	} `json:"implementation"`
	Profiles []profile `json:"profiles"`
}

type profile struct {
	Name     string    `json:"name"`
	Core     status    `json:"core"`
	Extended *extended `json:"extended"`
}

type extended struct {
	status
	Supported   []string `json:"supportedFeatures"`
	Unsupported []string `json:"unsupportedFeatures"`
}

type status struct {
	Statistics struct{ Passed, Skipped, Failed int } `json:"statistics"`
	Failed     []string                              `json:"failedTests"`
	Skipped    []string                              `json:"skippedTests"`
}

// Page is the page of the reports in a directory.
func Page(dir string) (string, error) {
	var reports []report
	results := map[string]string{}
	for _, run := range runs {
		var r report
		of := map[string]string{}
		if err := errors.Join(read(filepath.Join(dir, run+".yaml"), &r), read(filepath.Join(dir, run+"-tests.yaml"), &of)); err != nil {
			return "", err
		}
		if len(r.Profiles) == 0 {
			return "", fmt.Errorf("%s has no profile: run `make conformance` again", filepath.Join(dir, run+".yaml"))
		}
		reports = append(reports, r)
		maps.Copy(results, of)
	}
	first := reports[0]
	for _, r := range reports[1:] {
		if r.Implementation != first.Implementation || r.GatewayAPIVersion != first.GatewayAPIVersion ||
			r.GatewayAPIChannel != first.GatewayAPIChannel {
			return "", fmt.Errorf("the reports in %s are of different versions: run `make conformance` again", dir)
		}
	}
	var page strings.Builder
	fmt.Fprintf(&page, `# Conformance with the Gateway API

This page is written by `+"`make conformance-page`"+`, from the reports that the project's conformance suite wrote when
`+"`make conformance`"+` ran it, which are in [gateway-api](gateway-api). The suite is that of the release, unmodified.

| | |
|---|---|
| Gateway API | %s, %s channel |
| control plane | %s %s |
| date | %s |
| tests | %s |

## Tests by profile

| profile | Core | Extended |
|---|---|---|
`, first.GatewayAPIVersion, first.GatewayAPIChannel, first.Implementation.Project, first.Implementation.Version, first.Date, total(results))
	profiles := profilesOf(reports)
	for _, p := range profiles {
		more := "none"
		if p.Extended != nil {
			more = p.Extended.text()
		}
		fmt.Fprintf(&page, "| %s | %s | %s |\n", p.Name, p.Core.text(), more)
	}
	page.WriteString(`
A test counts in each profile that has all features which the test needs. Tests that need features of several profiles
are in none.

## Extended features

| feature | claimed | in profiles |
|---|---|---|
`)
	claims := claimsOf(profiles)
	for _, name := range slices.Sorted(maps.Keys(claims)) {
		answer := "no"
		if claims[name].claimed {
			answer = "yes"
		}
		fmt.Fprintf(&page, "| %s | %s | %s |\n", name, answer, strings.Join(claims[name].profiles, ", "))
	}
	var others []string
	for _, name := range slices.Sorted(maps.Keys(results)) {
		if results[name] != "passed" {
			others = append(others, fmt.Sprintf("| %s | %s |\n", name, results[name]))
		}
	}
	if len(others) > 0 {
		page.WriteString("\n## Tests that have not passed\n\n| test | result |\n|---|---|\n" + strings.Join(others, ""))
	}
	return page.String(), nil
}

func read(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := yaml.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func total(results map[string]string) string {
	passed := 0
	for _, r := range results {
		if r == "passed" {
			passed++
		}
	}
	return fmt.Sprintf("%d of %d passed", passed, len(results))
}

// profilesOf are the profiles of all reports, by name: the suite writes them in any order.
func profilesOf(reports []report) (list []profile) {
	for _, r := range reports {
		list = append(list, r.Profiles...)
	}
	slices.SortFunc(list, func(a, b profile) int { return strings.Compare(a.Name, b.Name) })
	return list
}

func (s status) text() string {
	parts := []string{fmt.Sprintf("%d passed", s.Statistics.Passed)}
	if n := s.Statistics.Failed; n > 0 {
		parts = append(parts, fmt.Sprintf("**%d failed**", n))
	}
	if n := s.Statistics.Skipped; n > 0 {
		parts = append(parts, fmt.Sprintf("**%d skipped**", n))
	}
	return strings.Join(parts, ", ")
}

type claim struct {
	claimed  bool
	profiles []string
}

// claimsOf says of each extended feature whether it is claimed, and in which profiles it is.
func claimsOf(profiles []profile) map[string]claim {
	claims := map[string]claim{}
	for _, p := range profiles {
		if p.Extended == nil {
			continue
		}
		for _, name := range append(slices.Clone(p.Extended.Supported), p.Extended.Unsupported...) {
			c := claims[name]
			c.claimed = slices.Contains(p.Extended.Supported, name)
			c.profiles = append(c.profiles, p.Name)
			claims[name] = c
		}
	}
	return claims
}
