package alerts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// promtool returns the path of the program, in the directory PROMETHEUS_BIN.
func promtool(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("PROMETHEUS_BIN")
	if dir == "" {
		t.Skip("PROMETHEUS_BIN is not set: `make alerts` builds promtool and runs this test")
	}
	return filepath.Join(dir, "promtool")
}

// writeRules writes the groups of a service as Prometheus reads them, and returns the path.
func writeRules(t *testing.T, dir string, s *Service) string {
	t.Helper()
	content, err := yaml.Marshal(map[string]any{"groups": s.Groups})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, s.Name+".yaml")
	if err := os.WriteFile(path, content, 0o644); err != nil { //nolint:gosec // rules
		t.Fatal(err)
	}
	return path
}

func run(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	return string(out), err
}

// promtool takes the rules, and every expression of a dashboard as the expression of a rule.
func TestRulesAreValid(t *testing.T) {
	tool, dir := promtool(t), t.TempDir()
	for _, s := range load(t) {
		var shown []Rule
		for _, p := range readDashboard(t, s).Panels {
			for _, target := range p.Targets {
				shown = append(shown, Rule{Record: fmt.Sprintf("shown:r%d", len(shown)),
					Expr: strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")})
			}
		}
		panels := &Service{Name: s.Name + "-dashboard", Groups: []Group{{Name: "shown", Rules: shown}}}
		if out, err := run(t, tool, "check", "rules", "--lint=all", "--lint-fatal", writeRules(t, dir, s),
			writeRules(t, dir, panels)); err != nil {
			t.Errorf("%s: %v\n%s", s.Name, err, out)
		}
	}
}

// Case has the series, one sample a minute in promtool's notation, with which an alert fires at the last minute, and
// those with which it does not.
type Case struct {
	Fires, Silent map[string]string
}

func cases(t *testing.T, s *Service) map[string]Case {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(s.Dir, "cases.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]Case{}
	if err := yaml.UnmarshalStrict(content, &out); err != nil {
		t.Fatalf("%s: %v", s.Dir, err)
	}
	return out
}

var repeated = regexp.MustCompile(`x(\d+)$`)

// minutes is how many minutes after its first sample a series ends: "1x3" has four samples, "5" one, "_x2" two.
func minutes(t *testing.T, values string) int {
	t.Helper()
	n := 0
	for _, f := range strings.Fields(values) {
		m := repeated.FindStringSubmatch(f)
		if m == nil {
			n++
			continue
		}
		times, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		if n += times; !strings.HasPrefix(f, "_") {
			n++
		}
	}
	return n - 1
}

// series is a line of promtool's input_series.
type series struct {
	Series string `json:"series"`
	Values string `json:"values"`
}

// expectation is one of promtool's tests of an expression.
type expectation struct {
	Expr    string           `json:"expr"`
	At      string           `json:"eval_time"`
	Samples []map[string]any `json:"exp_samples,omitempty"`
}

// firing expects that an alert fires so many seconds after the begin, or has fired in the minutes before; or neither.
func firing(alert, service string, seconds, minutes int, yes bool) expectation {
	e := expectation{
		Expr: fmt.Sprintf(`count(count_over_time(ALERTS{alertname=%q, service=%q, alertstate="firing"}[%dm])) > bool 0`, alert, service,
			max(minutes, 1)),
		At: fmt.Sprintf("%ds", seconds),
	}
	if yes {
		e.Samples = []map[string]any{{"labels": "{}", "value": 1}}
	}
	return e
}

// group is a test of promtool.
type group struct {
	Name     string        `json:"name"`
	Interval string        `json:"interval"`
	Series   []series      `json:"input_series"`
	Expect   []expectation `json:"promql_expr_test"`
}

// replay lets promtool evaluate the rules of services on series.
func replay(t *testing.T, tool string, services []*Service, groups ...group) {
	t.Helper()
	dir := t.TempDir()
	var files []string
	for _, s := range services {
		files = append(files, filepath.Base(writeRules(t, dir, s)))
	}
	content, err := yaml.Marshal(map[string]any{"rule_files": files, "evaluation_interval": "30s", "tests": groups})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "tests.yml")
	if err := os.WriteFile(path, content, 0o644); err != nil { //nolint:gosec // series
		t.Fatal(err)
	}
	if out, err := run(t, tool, "test", "rules", path); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestAlertsFireAndStaySilent(t *testing.T) {
	tool := promtool(t)
	for _, s := range load(t) {
		t.Run(s.Name, func(t *testing.T) {
			known, alerts := cases(t, s), []string{}
			rules, _ := s.Alerts()
			var groups []group
			for _, r := range rules {
				alerts = append(alerts, r.Alert)
				c, ok := known[r.Alert]
				if !ok || len(c.Fires) == 0 || len(c.Silent) == 0 {
					t.Errorf("cases.yaml does not say with which series %s fires, and with which it is silent", r.Alert)
					continue
				}
				for yes, input := range map[bool]map[string]string{true: c.Fires, false: c.Silent} {
					g := group{Name: fmt.Sprintf("%s fires: %v", r.Alert, yes), Interval: "1m"}
					last := 0
					for name, values := range input {
						g.Series = append(g.Series, series{name, values})
						last = max(last, minutes(t, values))
					}
					g.Expect = []expectation{firing(r.Alert, s.Name, last*60, 1, yes)}
					groups = append(groups, g)
				}
			}
			for name := range known {
				if !slices.Contains(alerts, name) {
					t.Errorf("cases.yaml has %s, which is no alert of %s", name, s.Name)
				}
			}
			replay(t, tool, []*Service{s}, groups...)
		})
	}
}
