// Package alerts tests what a service's own people are on call with: the alerts, objectives and dashboards of
// services/NAME/ops. TestRunbooks holds the tables of docs/runbooks, which are written from them. `make alerts` runs
// the rest, with promtool: every alert fires on written series and stays silent on others
// (services/NAME/ops/cases.yaml), and fires on the metrics of real services in which its fault was made
// (lab_test.go, and a file for each service).
package alerts

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Rule is an alert or a recording rule, in the fields of Prometheus.
type Rule struct {
	Alert       string            `json:"alert,omitempty"`
	Record      string            `json:"record,omitempty"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Group is a group of rules, in the fields of Prometheus.
type Group struct {
	Name  string `json:"name"`
	Rules []Rule `json:"rules"`
}

// Service is a service with rules of its own.
type Service struct {
	Name string
	// Dir is services/NAME/ops.
	Dir string
	// Groups are those of all PrometheusRules in Dir.
	Groups []Group
}

// prometheusRule is the object of the Prometheus operator that holds groups.
type prometheusRule struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels,omitempty"`
	} `json:"metadata"`
	Spec struct {
		Groups []Group `json:"groups"`
	} `json:"spec"`
}

// Load reads the rules of every service below the root of the repository.
func Load(root string) ([]*Service, error) {
	files, err := filepath.Glob(filepath.Join(root, "services", "*", "ops", "*.yaml"))
	if err != nil {
		return nil, err
	}
	var services []*Service
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var head struct {
			Kind string `json:"kind"`
		}
		if err := yaml.Unmarshal(content, &head); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if head.Kind != "PrometheusRule" {
			continue
		}
		var object prometheusRule
		if err := yaml.UnmarshalStrict(content, &object); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		dir := filepath.Dir(file)
		name := filepath.Base(filepath.Dir(dir))
		if len(services) == 0 || services[len(services)-1].Name != name {
			services = append(services, &Service{Name: name, Dir: dir})
		}
		s := services[len(services)-1]
		s.Groups = append(s.Groups, object.Spec.Groups...)
	}
	return services, nil
}

// Alerts are the service's, in the order of its files. common tells which are those of every service.
func (s *Service) Alerts() (alerts []Rule, common map[string]bool) {
	common = map[string]bool{}
	for _, g := range s.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" {
				continue
			}
			alerts = append(alerts, r)
			common[r.Alert] = strings.HasSuffix(g.Name, "-common")
		}
	}
	return alerts, common
}

// Marks of what is written into a runbook.
const (
	begin = "<!-- Written by make generate from services/%s/ops. -->\n"
	end   = "<!-- End of what is written. -->\n"
)

// Insert puts tables of alerts in the place of what stands between the marks of a page.
func Insert(page, service, table string) (string, error) {
	first := fmt.Sprintf(begin, service)
	head, rest, ok := strings.Cut(page, first)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return "", fmt.Errorf("the page has no lines %q and %q", first, end)
	}
	return head + first + table + end + tail, nil
}

// Table shows alerts as a runbook does. job is the name that stands for the job, or "".
func Table(alerts []Rule, job string) string {
	var b strings.Builder
	b.WriteString("| alert | expression | means, first step |\n|---|---|---|\n")
	for _, r := range alerts {
		expr := r.Expr
		if job != "" {
			expr = strings.ReplaceAll(expr, `job="`+job+`"`, `job="…"`)
		}
		held := ""
		if r.For != "" {
			held = " for " + r.For
		}
		fmt.Fprintf(&b, "| %s (%s) | `%s`%s | %s |\n", r.Alert, r.Labels["severity"], expr, held, r.Annotations["description"])
	}
	return b.String()
}

var (
	texts      = regexp.MustCompile(`"(\\.|[^"])*"|'[^']*'`)
	selectors  = regexp.MustCompile(`\{[^}]*\}|\[[^\]]*\]`)
	groupings  = regexp.MustCompile(`\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)`)
	names      = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*`)
	metricLike = regexp.MustCompile(`_|:`)
)

// Metrics lists the names of metrics in an expression: every name with an underscore or a colon that is not a function.
// `up` is Prometheus' own.
func Metrics(expr string) []string {
	expr = groupings.ReplaceAllString(selectors.ReplaceAllString(texts.ReplaceAllString(expr, ""), ""), "")
	var found []string
	for _, at := range names.FindAllStringIndex(expr, -1) {
		name, call := expr[at[0]:at[1]], strings.HasPrefix(strings.TrimSpace(expr[at[1]:]), "(")
		if metricLike.MatchString(name) && !call && !slices.Contains(found, name) {
			found = append(found, name)
		}
	}
	return found
}
