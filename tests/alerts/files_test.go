package alerts

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
)

const root = "../.."

func load(t *testing.T) []*Service {
	t.Helper()
	services, err := Load(root)
	if err != nil {
		t.Fatal(err)
	}
	return services
}

// The tables of the runbooks are what the files say.
func TestRunbooks(t *testing.T) {
	var every string
	for _, s := range load(t) {
		alerts, common := s.Alerts()
		own := slices.DeleteFunc(slices.Clone(alerts), func(r Rule) bool { return common[r.Alert] })
		shared := slices.DeleteFunc(slices.Clone(alerts), func(r Rule) bool { return !common[r.Alert] })
		compare(t, filepath.Join(root, "docs", "runbooks", s.Name+".md"), s.Name, Table(own, ""))
		if table := Table(shared, s.Name); len(table) > len(every) {
			every = table
		}
	}
	compare(t, filepath.Join(root, "docs", "runbooks", "README.md"), "*", every)
}

func compare(t *testing.T, path, service, table string) {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want, err := Insert(string(page), service, table)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	testkit.Golden(t, path, []byte(want))
}

// Every alert says how urgent it is, whose it is, what it means and where to read on; names are unique but for the
// alerts of every service, which differ in the job alone.
func TestAlertsSayWhatTheirReaderNeeds(t *testing.T) {
	seen, texts := map[string]string{}, map[string]string{}
	for _, s := range load(t) {
		alerts, common := s.Alerts()
		for _, r := range alerts {
			if owner := seen[r.Alert]; owner != "" && !common[r.Alert] {
				t.Errorf("%s is an alert of %s and of %s", r.Alert, owner, s.Name)
			}
			seen[r.Alert] = s.Name
			if !slices.Contains([]string{"page", "ticket"}, r.Labels["severity"]) || r.Labels["service"] != s.Name {
				t.Errorf("%s of %s has the labels %v", r.Alert, s.Name, r.Labels)
			}
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s of %s has the annotations %v", r.Alert, s.Name, r.Annotations)
			}
			if _, err := os.Stat(filepath.Join(root, r.Annotations["runbook"])); r.Annotations["runbook"] == "" || err != nil {
				t.Errorf("%s of %s: runbook %q: %v", r.Alert, s.Name, r.Annotations["runbook"], err)
			}
			if !common[r.Alert] {
				continue
			}
			job := fmt.Sprintf("job=%q", s.Name)
			if !strings.Contains(r.Expr, job) {
				t.Errorf("%s of %s fires for other services, too: %s", r.Alert, s.Name, r.Expr)
			}
			text := strings.ReplaceAll(r.Expr, job, "job") + r.For + r.Labels["severity"] + r.Annotations["description"]
			if first, ok := texts[r.Alert]; ok && first != text {
				t.Errorf("%s of %s is %q, elsewhere %q", r.Alert, s.Name, text, first)
			}
			texts[r.Alert] = text
		}
	}
}

// An objective is one number: the thresholds of its alerts are multiples of the budget that it leaves, over windows
// that are recorded. A service that is several processes has an objective for each. The operator and fairlead-gateways
// wake nobody, and have the slow alerts alone.
func TestBurnRatesBelongToTheObjective(t *testing.T) {
	burns := regexp.MustCompile(`^fairlead_(\S+):slo_errors:ratio_(\w+) > (\S+) and fairlead_(\S+):slo_errors:ratio_(\w+) > (\S+)$`)
	slow := map[string]string{"1d 2h ticket": "3", "3d 6h ticket": "1"}
	whole := map[string]string{"1h 5m page": "14.4", "6h 30m page": "6"}
	maps.Copy(whole, slow)
	for _, s := range load(t) {
		text, err := os.ReadFile(filepath.Join(s.Dir, "slo.yaml"))
		if err != nil {
			t.Errorf("%s has no objective: %v", s.Name, err)
			continue
		}
		says := regexp.MustCompile(`(?m)^# Objective of (\S+): ([0-9.]+) %`).FindAllSubmatch(text, -1)
		if says == nil || !strings.HasPrefix(string(text), "# Objective of ") {
			t.Errorf("%s/slo.yaml does not begin with its objective", s.Dir)
			continue
		}
		objectives, found := map[string]float64{}, map[string]map[string]string{}
		for _, m := range says {
			name := strings.ReplaceAll(string(m[1]), "-", "_")
			if objectives[name], err = strconv.ParseFloat(string(m[2]), 64); err != nil {
				t.Fatal(err)
			}
			found[name] = map[string]string{}
		}
		recorded := map[string]bool{}
		alerts, _ := s.Alerts()
		for _, g := range s.Groups {
			for _, r := range g.Rules {
				recorded[r.Record] = true
			}
		}
		for _, r := range alerts {
			m := burns.FindStringSubmatch(r.Expr)
			if m == nil {
				continue
			}
			threshold, err := strconv.ParseFloat(m[3], 64)
			ratio := "fairlead_" + m[1] + ":slo_errors:ratio_"
			if err != nil || found[m[1]] == nil || m[1] != m[4] || m[3] != m[6] || !recorded[ratio+m[2]] || !recorded[ratio+m[5]] {
				t.Errorf("%s: %s (%v)", r.Alert, r.Expr, err)
				continue
			}
			found[m[1]][m[2]+" "+m[5]+" "+r.Labels["severity"]] = strconv.FormatFloat(threshold/(1-objectives[m[1]]/100), 'g', 3, 64)
		}
		for name, multiples := range found {
			if quiet := name == "operator" || name == "gateways"; !maps.Equal(multiples, whole) && (!quiet || !maps.Equal(multiples, slow)) {
				t.Errorf("%s of %s alerts on the budget's multiples %v, want %v", name, s.Name, multiples, whole)
			}
		}
	}
}

// dashboard is what of a dashboard Grafana takes from Prometheus.
type dashboard struct {
	UID    string `json:"uid"`
	Title  string `json:"title"`
	Panels []struct {
		ID      int    `json:"id"`
		Title   string `json:"title"`
		Targets []struct {
			Expr string `json:"expr"`
		} `json:"targets"`
	} `json:"panels"`
}

func readDashboard(t *testing.T, s *Service) dashboard {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(s.Dir, "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(content, &d); err != nil {
		t.Fatalf("%s: %v", s.Dir, err)
	}
	return d
}

// Whoever is woken by an alert finds its metrics on the service's dashboard.
func TestDashboardsShowWhatAlertsWatch(t *testing.T) {
	for _, s := range load(t) {
		d, ids, shown := readDashboard(t, s), map[int]bool{}, map[string]bool{"up": true}
		if d.UID != "fairlead-"+s.Name || len(d.Panels) == 0 {
			t.Errorf("dashboard of %s: %s, %d panels", s.Name, d.UID, len(d.Panels))
		}
		for _, p := range d.Panels {
			if ids[p.ID] || p.Title == "" || len(p.Targets) == 0 {
				t.Errorf("%s: panel %d %q with %d expressions", s.Name, p.ID, p.Title, len(p.Targets))
			}
			ids[p.ID] = true
			for _, target := range p.Targets {
				for _, m := range Metrics(target.Expr) {
					shown[m] = true
				}
			}
		}
		alerts, _ := s.Alerts()
		for _, r := range alerts {
			for _, m := range Metrics(r.Expr) {
				if !shown[m] && !strings.Contains(m, ":") {
					t.Errorf("%s watches %s, which the dashboard of %s does not show", r.Alert, m, s.Name)
				}
			}
		}
	}
}

func TestMetricsOfExpressions(t *testing.T) {
	for expr, want := range map[string][]string{
		`histogram_quantile(0.99, sum by (le, type) (rate(a_b_bucket{c="d_e"}[10m]))) > 2`: {"a_b_bucket"},
		`x:y:rate5m > 0.1 and avg_over_time(z_total[$__rate_interval]) > time()`:           {"x:y:rate5m", "z_total"},
	} {
		if got := Metrics(expr); !slices.Equal(got, want) {
			t.Errorf("%s has %v, want %v", expr, got, want)
		}
	}
}
